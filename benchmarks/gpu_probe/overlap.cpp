// Measures a step of units that compute for known times. The link is simulated, and each collective
// on it takes a known time. Times are measured by the device's clock.
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "benchmarks/gpu_probe/probe.h"
#include "comm/mesh_state.h"
#include "kernels/pause.h"
#include "libtorch/torch_cuda.h"
#include "runtime/device.h"
#include "tests/support/run_ranks.h"
#include "tests/support/wire/wire_ranks.h"

namespace gpu_probe {
namespace {

constexpr int kOverlapRanks = 2;
constexpr int kSteps = 4;  // the order of units is known after the first step

// The compute stream of a rank. Its work consists of pauses and of three time marks on the device.
class PausedCompute {
 public:
  PausedCompute(const fsdp::Mesh& mesh, at::Device device)
      : stream_(state_of(mesh).device().compute_stream(fsdp::torch_cuda::current_stream(device))),
        marks_(state_of(mesh).device().allocate(3 * sizeof(int64_t), fsdp::MemoryKind::kDevice)) {}

  void work(int64_t us) const {
    mark(2);
    fsdp::kernels::pause_since(stream_, {place(2), 1}, us * 1000);
  }
  void mark(int which) const { fsdp::kernels::mark_time(stream_, place(which)); }
  double us_between_marks() const {
    std::array<int64_t, 2> ns{};
    stream_.read(ns.data(), place(0), sizeof ns);
    return static_cast<double>(ns[1] - ns[0]) * 1e-3;
  }

 private:
  int64_t* place(int which) const { return static_cast<int64_t*>(marks_.data()) + which; }

  fsdp::Stream& stream_;
  const fsdp::Buffer marks_;
};

thread_local const PausedCompute* compute = nullptr;  // of the rank, which is a thread

// An operator that pauses the compute stream in forward and in backward.
class Paused : public torch::autograd::Function<Paused> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t forward_us, int64_t backward_us) {
    context->saved_data["backward_us"] = backward_us;
    compute->work(forward_us);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    compute->work(context->saved_data["backward_us"].toInt());
    return {gradients[0], {}, {}};
  }
};

// The sizes and times of the model.
struct Shape {
  int64_t width, units, forward_us, backward_us;
};

// A unit of width² floats.
struct PausingLayerImpl : torch::nn::Module {
  explicit PausingLayerImpl(const Shape& of)
      : shape(of),
        linear(register_module(
            "linear",
            torch::nn::Linear(torch::nn::LinearOptions(of.width, of.width).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return Paused::apply(linear(x), shape.forward_us, shape.backward_us);
  }
  const Shape shape;
  torch::nn::Linear linear;
};
TORCH_MODULE(PausingLayer);

struct PausingModelImpl : torch::nn::Module {
  explicit PausingModelImpl(const Shape& shape) {
    for (int64_t i = 0; i < shape.units; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), fsdp::Unit<PausingLayer>(shape)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<fsdp::Unit<PausingLayer>> layers;
};
TORCH_MODULE(PausingModel);

// Trains a rank and returns the microseconds of its last step.
double last_step_us(const fsdp::Mesh& mesh, const Shape& shape, int prefetch) {
  fsdp::Unit<PausingModel> model(shape);
  fsdp::Engine engine(
      model, mesh,
      {.prefetch_units = prefetch, .tuning = {.cpu_streams = fsdp::CpuStreamKind::kThreaded}});
  const at::Tensor x = torch::ones({1, shape.width}).to(engine.device());
  const PausedCompute own(mesh, engine.device());
  compute = &own;
  double us = 0;
  for (int step = 0; step < kSteps; ++step) {
    mesh.agree("step", {});
    own.mark(0);
    model(x).sum().backward();
    own.mark(1);
    us = own.us_between_marks();
    engine.zero_grad();
  }
  compute = nullptr;
  return us;
}

// Returns the step time of the slower rank. The rate is chosen so that a collective of one unit
// lasts `wire_us`.
double slower_step_us(const Place& place, const Shape& shape, int prefetch, double wire_us) {
  std::array<double, kOverlapRanks> us{};
  const double bytes = static_cast<double>(shape.width * shape.width * 4) / kOverlapRanks;
  fsdp::testing::run_ranks(
      kOverlapRanks,
      [&](const fsdp::Mesh& mesh) {
        us[static_cast<size_t>(mesh.rank())] = last_step_us(mesh, shape, prefetch);
      },
      {.mesh = {.device = place.kind},
       .in_each_thread =
           [] {  // backward in the rank's own thread
             c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
             at::set_num_threads(1);
           },
       .make = fsdp::testing::ranks_on_wire({.gigabytes_per_second = bytes / wire_us * 1e-3})});
  return *std::max_element(us.begin(), us.end());
}

}  // namespace

void serve_overlap(const Place& place, const Words& words) {
  const Shape shape{.width = std::stoll(words[0]),
                    .units = std::stoll(words[1]),
                    .forward_us = std::stoll(words[2]),
                    .backward_us = std::stoll(words[3])};
  serve({{"step", [&](std::istream& arguments) {
            int prefetch = 0;
            double wire_us = 0;
            if (!(arguments >> prefetch >> wire_us) || wire_us <= 0)
              refuse("expected: step PREFETCH WIRE_US");
            return slower_step_us(place, shape, prefetch, wire_us);
          }}});
}

}  // namespace gpu_probe
