// Measures the time of a rank's thread between operators.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/median.h"
#include "fsdp/engine.h"
#include "fsdp/measured_rates.h"
#include "fsdp/optim.h"
#include "fsdp/plan.h"
#include "fsdp/unit.h"
#include "planner/time/device_timer.h"

namespace fsdp {
namespace {

constexpr int64_t kFeatures = 8;

// Layers on few elements.
struct SmallLayersImpl : torch::nn::Module {
  explicit SmallLayersImpl(int count) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(kFeatures, kFeatures)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = at::relu(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(SmallLayers);

struct SmallModelImpl : torch::nn::Module {
  SmallModelImpl(int unit_count, int layers) {
    for (int i = 0; i < unit_count; ++i) {
      units.emplace_back(layers);
      register_module(std::to_string(i), units.back());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& unit : units) x = unit(x);
    return x;
  }
  std::vector<Unit<SmallLayers>> units;
};
TORCH_MODULE(SmallModel);

// A step of a small model: its measured time without that of its operators, and its calls.
struct SmallStep {
  double rest_ns = 0;
  double operators = 0, kernels = 0;  // calls
  double operator_ns = 0;             // mean time of an operator
};

SmallStep small_step(CpuClock clock, int units, int layers) {
  const auto build = [=] { return Unit<SmallModel>(units, layers); };
  const auto loss = [](Unit<SmallModel>& model) { return model(at::ones({1, kFeatures})).sum(); };
  Planner planner(build, loss);
  PlanRequest request;
  PlayedOperators operators = planner.operators(request);

  Unit<SmallModel> model = build();
  Engine engine(model, Mesh::single());
  AdamW optimizer(engine, {.lr = 0});
  constexpr int kRounds = 31, kStepsOfRound = 3;
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    operators.play(at::kCPU, clock, PlayedCaches::kWarm);
    const double begin = now_ns(clock);
    for (int i = 0; i < kStepsOfRound; ++i) {
      engine.forward([&] { return loss(model); }).backward();
      optimizer.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    const double taken = now_ns(clock) - begin;
    if (round > 0) times.push_back(taken / kStepsOfRound);
  }
  // On an inline stream all times add up, so a plan with one more unit of time per call counts
  // these calls.
  constexpr double kUnit = 1e6;
  const Rates only_operators{
      .copy = INFINITY,
      .types = {{.dtype = c10::ScalarType::Float, .products = {{1, INFINITY}}}},
      .operators = operators.prices(0)};
  const auto planned = [&](const Rates& rates) {
    request.rates = rates;
    return static_cast<double>(planner.plan(request).time->total_ns);
  };
  const double played = planned(only_operators);
  Rates counts_kernels = only_operators, counts_operators = only_operators;
  counts_kernels.host_ns_per_kernel = kUnit;
  counts_operators.host_ns_per_call = counts_operators.host_ns_per_kernel = kUnit;
  counts_operators.operators = operators.prices(kUnit);
  const double kernels = (planned(counts_kernels) - played) / kUnit;
  const double calls = (planned(counts_operators) - played) / kUnit - kernels;
  return {.rest_ns = median_of(times) - played,
          .operators = calls,
          .kernels = kernels,
          .operator_ns = played / calls};
}

}  // namespace

// A step takes operators · between + kernels · per_kernel in addition to its operators. Two models
// with different numbers of units give two equations.
HostTimes measured_host_times(CpuClock clock) {
  const SmallStep one = small_step(clock, /*units=*/1, /*layers=*/48);
  const SmallStep many = small_step(clock, /*units=*/12, /*layers=*/4);
  const double determinant = one.operators * many.kernels - many.operators * one.kernels;
  const double between = (one.rest_ns * many.kernels - many.rest_ns * one.kernels) / determinant;
  const double per_kernel = std::max(0.0, (many.rest_ns - many.operators * between) / many.kernels);
  // Other work of the machine can make the differences negative.
  return {.between_ns = between,
          .per_call_ns = std::max(0.0, between + one.operator_ns),
          .per_kernel_ns = per_kernel};
}

}  // namespace fsdp
