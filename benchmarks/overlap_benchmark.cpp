// Does communication hide behind compute? Units that compute for a known time (they sleep) under a
// wire on which every gather and reduction takes a known time, against what a perfect schedule
// would take. With streams of their own a step should take the overlapped time, inline the sum.
//   bench_overlap [--json FILE]
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/simulated_mesh.h"

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kUnits = 8;
constexpr int kRounds = 7;
constexpr int64_t kWidth = 64;

void compute_for(Milliseconds time) { std::this_thread::sleep_for(time); }

struct Workload {
  const char* name;
  Milliseconds forward, backward;  // a unit's compute
  Milliseconds wire;               // a collective
};

class Compute : public torch::autograd::Function<Compute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double forward_ms, double backward_ms) {
    context->saved_data["backward_ms"] = backward_ms;
    compute_for(Milliseconds(forward_ms));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    compute_for(Milliseconds(context->saved_data["backward_ms"].toDouble()));
    return {gradients[0], {}, {}};
  }
};

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Workload& work)
      : work(work), linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    return Compute::apply(linear(x), work.forward.count(), work.backward.count());
  }
  Workload work;
  torch::nn::Linear linear;
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Workload& work) {
    for (int i = 0; i < kUnits; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), fsdp::Unit<Layer>(work)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<fsdp::Unit<Layer>> layers;
};
TORCH_MODULE(Model);

// The first gather of each direction and the last reduction can hide behind nothing; in between the
// longer of compute and wire decides. A wire longer than the compute delays the end by its rest.
double overlapped_ms(const Workload& work) {
  const double wire = work.wire.count();
  const auto direction = [&](double compute) {
    return wire + (kUnits - 1) * std::max(compute, wire) + compute;
  };
  return direction(work.forward.count()) + direction(work.backward.count()) + wire;
}

double serial_ms(const Workload& work) {
  return kUnits * (work.forward + work.backward + 3 * work.wire).count();
}

// What the system makes of a sleep: longer than asked for, and more so on a busy machine.
Milliseconds slept(Milliseconds asked) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    compute_for(asked);
    times.push_back(Milliseconds(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return Milliseconds(times[kRounds / 2]);
}

Workload as_slept(Workload work) {
  for (Milliseconds* time : {&work.forward, &work.backward, &work.wire}) *time = slept(*time);
  return work;
}

double median_step_ms(const Workload& work, fsdp::CpuStreamKind streams) {
  const auto wire = std::chrono::duration_cast<std::chrono::nanoseconds>(work.wire);
  fsdp::Unit<Model> model(work);
  fsdp::Engine engine(model, fsdp::testing::simulated_mesh(2, wire),
                      {.prefetch_units = 1, .cpu_streams = streams});
  std::vector<double> times;
  for (int round = 0; round < kRounds + 2; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    model(torch::ones({1, kWidth})).sum().backward();
    const Milliseconds time = std::chrono::steady_clock::now() - begin;
    engine.zero_grad();
    if (round >= 2) times.push_back(time.count());
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && !(words.size() == 2 && words[0] == "--json")) {
    fmt::print(stderr, "usage: bench_overlap [--json FILE]\n");
    return 64;
  }
  std::ofstream json;
  if (!words.empty()) json.open(words[1]);
  using Ms = Milliseconds;
  const std::vector<Workload> workloads = {
      {"compute-bound", Ms(12), Ms(24), Ms(8)},
      {"balanced", Ms(10), Ms(10), Ms(10)},
      {"wire-bound", Ms(4), Ms(8), Ms(12)},
  };
  fmt::print("{:<16} {:<10} {:>12} {:>12} {:>8}\n", "case", "streams", "measured ms", "analytic ms",
             "ratio");
  for (const Workload& work : workloads) {
    for (const bool threaded : {true, false}) {
      const auto kind = threaded ? fsdp::CpuStreamKind::kThreaded : fsdp::CpuStreamKind::kInline;
      const double measured = median_step_ms(work, kind);
      const Workload real = as_slept(work);
      const double analytic = threaded ? overlapped_ms(real) : serial_ms(real);
      const char* streams = threaded ? "threaded" : "inline";
      fmt::print("{:<16} {:<10} {:>12.1f} {:>12.1f} {:>8.3f}\n", work.name, streams, measured,
                 analytic, measured / analytic);
      if (json.is_open()) {
        json << fmt::format(
            "{{\"bench\": \"overlap\", \"case\": \"{} {}\", \"ranks\": 2, \"ours\": {:.3f}, "
            "\"peer\": "
            "{:.3f}, \"peer_name\": \"analytic\", \"ratio\": {:.4f}, \"unit\": \"ms\"}}\n",
            work.name, streams, measured, analytic, analytic / measured);
      }
    }
  }
}
