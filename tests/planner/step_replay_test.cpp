// Tests plans with rates that repeat the step of an earlier plan.
#include <cstdlib>
#include <string>
#include <vector>

#include "plan/placement.h"
#include "planner/support/timed_plans.h"
#include "planner/support/vision_models.h"
#include "support/models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Checks a plan that repeats a step against the plan of its own. Times are sums of durations, so
// their last digit may be rounded differently.
void check_same_time(const StepPlan& replayed, const StepPlan& own) {
  const StepTime &a = replayed.time.value(), &b = own.time.value();
  const auto check = [](int64_t left, int64_t right) { CHECK(std::abs(left - right) <= 1); };
  check(a.total_ns, b.total_ns);
  check(a.compute_ns(), b.compute_ns());
  check(a.optimizer_ns, b.optimizer_ns);
  check(a.exposed_gather_ns, b.exposed_gather_ns);
  check(a.exposed_reduce_ns, b.exposed_reduce_ns);
  check(a.exposed_transfer_ns, b.exposed_transfer_ns);
  check(a.host_ns, b.host_ns);
  check(a.gather_ns, b.gather_ns);
  check(a.reduce_ns, b.reduce_ns);
  CHECK(a.flops == b.flops);
  CHECK(a.basis == b.basis);
  CHECK(a.gathers.count == b.gathers.count);
  CHECK(a.reductions.count == b.reductions.count);
  CHECK(replayed.to_string() == own.to_string());
  CHECK(replayed.traffic == own.traffic);
}

// Counts the steps that run LibTorch's operators.
struct CountedGpt {
  int steps = 0;
  Planner planner{tiny_gpt, [this](Unit<gpt::Gpt>& model) {
                    ++steps;
                    return gpt_loss(model);
                  }};

  bool runs(const PlanRequest& request) {
    const int before = steps;
    planner.plan(request);
    return steps > before;
  }
};

std::vector<Options> variants() {
  std::vector<Options> all;
  for (const StrategyRow& row : strategies()) {
    for (const int prefetch : {0, 2}) {
      all.push_back({.prefetch_units = prefetch, .strategy = row.strategy});
    }
  }
  all.push_back({.reshard_after_forward = false});
  all.push_back({.keep_last_units = 2});
  all.push_back({.cpu_offload = true});
  all.push_back({.optimizer_in_backward = true});
  return all;
}

}  // namespace

TEST_CASE("a plan that repeats a step has the time of the whole step to the nanosecond") {
  for (const DeviceKind device : {DeviceKind::kCuda, DeviceKind::kCpu}) {
    CountedGpt counted;
    for (const Options& options : variants()) {
      CAPTURE(static_cast<int>(options.strategy));
      CAPTURE(options.prefetch_units);
      CAPTURE(options.cpu_offload);
      CAPTURE(options.optimizer_in_backward);
      PlanRequest request = on_gpus(16, options);
      request.mesh.device = device;
      request.ranks_per_host = 8;
      request.rates = offload_rates();
      const StepPlan own = plan(request, tiny_gpt, [](auto& model) { return gpt_loss(model); });
      counted.planner.plan(request);  // may record a step
      const int before = counted.steps;
      check_same_time(counted.planner.plan(request), own);
      CHECK(counted.steps == before);
    }
  }
}

TEST_CASE("a recomputed, tied, copied or convolutional step is repeated, too") {
  PlanRequest request = on_gpus(4, {.recompute = 1});
  request.rates = sample_rates();
  const auto check = [&](const auto& build, const auto& step) {
    int steps = 0;
    Planner planner(build, [&](auto& model) {
      ++steps;
      return step(model);
    });
    planner.plan(request);
    const int before = steps;
    check_same_time(planner.plan(request), plan(request, build, step));
    CHECK(steps == before);
  };
  check(tiny_gpt, [](Unit<gpt::Gpt>& model) { return gpt_loss(model); });
  request.options = {};
  check([] { return Unit<Chain>(16, 4); },
        [](Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); });
  check([] { return Unit<ResNet>(); },
        [](Unit<ResNet>& model) {
          return model(torch::zeros({2, 3, 32, 32})).sum();
        });
}

TEST_CASE("a planner repeats a step only with the same rates and without a trace") {
  CountedGpt counted;
  PlanRequest request = on_gpus(4);
  CHECK(counted.runs(request));
  request.rates = sample_rates();
  CHECK(counted.runs(request));  // the first plan recorded no times
  request.ranks = 8;
  CHECK_FALSE(counted.runs(request));
  request.rates.reset();
  CHECK_FALSE(counted.runs(request));
  request.rates = sample_rates();
  request.rates->copy *= 2;
  CHECK(counted.runs(request));
  CHECK_FALSE(counted.runs(request));
  request.options.recompute = 1;
  CHECK(counted.runs(request));
}

// The gathers of a forward without a graph are in no record of a pass, and a record ends with the
// first backward.
TEST_CASE("a step that a replay cannot repeat is run anew") {
  for (const bool has_two_backwards : {false, true}) {
    CAPTURE(has_two_backwards);
    int steps = 0;
    const auto loss = [&](Unit<gpt::Gpt>& model) {
      ++steps;
      if (has_two_backwards) {
        gpt_loss(model).backward();
      } else {
        const torch::NoGradGuard no_grad;
        gpt_loss(model);
      }
      return gpt_loss(model);
    };
    PlanRequest request = on_gpus(4);
    request.rates = sample_rates();
    Planner planner(tiny_gpt, loss);
    const StepPlan first = planner.plan(request);
    const int before = steps;
    check_same_time(planner.plan(request), first);
    CHECK(steps > before);
  }
}
