// Units that compute for a known time (they sleep) under a wire on which every gather and reduction
// takes a known time. Reads a command a line and prints the milliseconds that it took.
//   overlap_probe UNITS FORWARD BACKWARD WIRE    in milliseconds: a unit's passes, a collective
//   threaded | inline          a step; collectives on threads of their own, or where called
//   forward | backward | wire  a sleep of that time; it is longer on a busy machine
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/simulated_mesh.h"

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int64_t kWidth = 64;

void compute_for(Milliseconds time) { std::this_thread::sleep_for(time); }

struct Workload {
  int units;
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
    for (int i = 0; i < work.units; ++i) {
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

double milliseconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return Milliseconds(std::chrono::steady_clock::now() - begin).count();
}

class Probe {
 public:
  explicit Probe(const Workload& work) : work_(work) {}

  double run(const std::string& name) {
    if (name == "threaded") return step(threaded_);
    if (name == "inline") return step(inline_);
    if (name == "forward") return slept(work_.forward);
    if (name == "backward") return slept(work_.backward);
    if (name == "wire") return slept(work_.wire);
    throw fsdp::InvalidArgument({.what = fmt::format("no command '{}'", name),
                                 .where = "overlap_probe",
                                 .cause = {},
                                 .hint = "threaded, inline, forward, backward or wire"});
  }

 private:
  struct Sharded {
    Sharded(const Workload& work, fsdp::CpuStreamKind streams)
        : model(work),
          engine(model,
                 fsdp::testing::simulated_mesh(
                     2, std::chrono::duration_cast<std::chrono::nanoseconds>(work.wire)),
                 {.prefetch_units = 1, .cpu_streams = streams}) {}
    fsdp::Unit<Model> model;
    fsdp::Engine engine;
  };

  static double step(Sharded& sharded) {
    const double time = milliseconds_of([&] {
      sharded.model(torch::ones({1, kWidth})).sum().backward();
    });
    sharded.engine.zero_grad();
    return time;
  }

  static double slept(Milliseconds asked) {
    return milliseconds_of([&] { compute_for(asked); });
  }

  Workload work_;
  Sharded threaded_{work_, fsdp::CpuStreamKind::kThreaded};
  Sharded inline_{work_, fsdp::CpuStreamKind::kInline};
};

void serve(const Workload& work) {
  Probe probe(work);
  for (std::string name; std::cin >> name;) {
    fmt::print("{:.4f}\n", probe.run(name));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: overlap_probe UNITS FORWARD BACKWARD WIRE\n");
    return 64;
  }
  try {
    serve({.units = std::stoi(argv[1]),
           .forward = Milliseconds(std::stod(argv[2])),
           .backward = Milliseconds(std::stod(argv[3])),
           .wire = Milliseconds(std::stod(argv[4]))});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
