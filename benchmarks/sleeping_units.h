// Defines a model whose units compute for known times. The units sleep, so a few cores are enough
// for any number of ranks.
#pragma once

#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace fsdp::sleeping {

using Milliseconds = std::chrono::duration<double, std::milli>;

// The compute times of a unit.
struct UnitTimes {
  Milliseconds forward, backward;
};

// An operator that sleeps in forward and in backward.
class Compute : public torch::autograd::Function<Compute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double forward_ms, double backward_ms) {
    context->saved_data["backward_ms"] = backward_ms;
    std::this_thread::sleep_for(Milliseconds(forward_ms));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(Milliseconds(context->saved_data["backward_ms"].toDouble()));
    return {gradients[0], {}, {}};
  }
};

// A unit of width² floats.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t width, const UnitTimes& unit_times)
      : times(unit_times),
        linear(register_module(
            "linear", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return Compute::apply(linear(x), times.forward.count(), times.backward.count());
  }
  UnitTimes times;
  torch::nn::Linear linear;
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t model_width, const std::vector<UnitTimes>& times) : width(model_width) {
    for (size_t i = 0; i < times.size(); ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), Unit<Layer>(width, times[i])));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  int64_t width;
  std::vector<Unit<Layer>> layers;
};
TORCH_MODULE(Model);

inline Milliseconds time_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::steady_clock::now() - begin;
}

// Sleeps and returns the actual time. A sleep is longer than requested, especially on a busy
// machine.
inline Milliseconds slept(Milliseconds asked) {
  return time_of([&] { std::this_thread::sleep_for(asked); });
}

}  // namespace fsdp::sleeping
