// A step in which communication and compute have given durations, and the time that it must take.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/unit.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/mesh_state.h"
#include "kernels/pause.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

struct UnitTimes {
  int64_t forward = 0, backward = 0;  // ns
};

// Returns the time of a step in which each gather and each reduction takes `wire`. The host is
// ahead of the device. So a gather waits only for the previous gather and for a free slot. There
// are `prefetch` + 1 slots.
inline int64_t overlapped(const std::vector<UnitTimes>& units, int64_t wire, int prefetch) {
  std::vector<int64_t> compute;
  for (const UnitTimes& unit : units) compute.push_back(unit.forward);
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) compute.push_back(unit->backward);
  std::vector<int64_t> done, reduced;
  const auto back = [](const std::vector<int64_t>& times, size_t from_end) {
    return from_end > times.size() ? 0 : times[times.size() - from_end];
  };
  int64_t gathered = 0;
  for (size_t i = 0; i < compute.size(); ++i) {
    gathered = std::max(gathered, back(done, prefetch + 1)) + wire;
    const bool in_backward = i >= units.size();
    const int64_t begin = std::max({back(done, 1), gathered, back(reduced, 2)});
    done.push_back(begin + compute[i]);
    if (in_backward) reduced.push_back(std::max(done.back(), back(reduced, 1)) + wire);
  }
  return reduced.back();
}

// The compute stream of a rank. Work on it is a pause.
struct TimedCompute {
  explicit TimedCompute(const Mesh& mesh)
      : stream(state_of(mesh).device().compute_stream()),
        marks(state_of(mesh).device().allocate(3 * sizeof(int64_t), MemoryKind::kDevice)) {}

  void work(int64_t ns) const {
    mark(2);
    kernels::pause_since(stream, {at(2), 1}, ns);
  }
  void mark(int place) const { kernels::mark_time(stream, at(place)); }
  int64_t marked(int place) const {
    int64_t ns = 0;
    stream.read(&ns, at(place), sizeof ns);
    return ns;
  }
  int64_t* at(int place) const { return static_cast<int64_t*>(marks.data()) + place; }

  Stream& stream;
  const Buffer marks;
};

inline thread_local const TimedCompute* compute = nullptr;

class Work : public torch::autograd::Function<Work> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t forward_ns, int64_t backward_ns) {
    context->saved_data["backward_ns"] = backward_ns;
    compute->work(forward_ns);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    compute->work(context->saved_data["backward_ns"].toInt());
    return {gradients[0], {}, {}};
  }
};

struct WorkingImpl : torch::nn::Module {
  explicit WorkingImpl(UnitTimes unit_times, bool lends)
      : times(unit_times),
        linear(register_module("linear",
                               torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(!lends)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return Work::apply(linear(x), times.forward, times.backward);
  }
  const UnitTimes times;
  torch::nn::Linear linear;
};
TORCH_MODULE(Working);

struct RowImpl : torch::nn::Module {
  RowImpl(const std::vector<UnitTimes>& times, bool lends) {
    for (size_t i = 0; i < times.size(); ++i) {
      units.push_back(register_module("u" + std::to_string(i), Unit<Working>(times[i], lends)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& unit : units) x = unit(x);
    return x;
  }
  std::vector<Unit<Working>> units;
};
TORCH_MODULE(Row);

struct Step {
  std::vector<UnitTimes> units;
  int64_t wire = 0;
  int prefetch = 1;
  bool lends = true;  // true: gradients are reduced zero-copy; false: copied to a slot
};

inline constexpr int64_t kMicrosecond = 1000;

inline std::vector<UnitTimes> alternating(int units) {
  std::vector<UnitTimes> times;
  for (int i = 0; i < units; ++i) {
    const int64_t scale = (i % 2 == 0 ? 40 : 120) * kMicrosecond;
    times.push_back({scale, 2 * scale});
  }
  return times;
}

}  // namespace fsdp::testing
