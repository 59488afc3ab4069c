#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/lr_scheduler.h"
#include "optim/optimizer_state.h"
#include "optim/scheduler_checks.h"

namespace fsdp {
namespace {

OneCycleLROptions checked(OneCycleLROptions options) {
  const auto require = [](bool holds, std::string_view option, double value,
                          std::string_view allowed) {
    require_option(holds, "OneCycleLR", option, value, allowed);
  };
  const auto is_positive = [](double value) { return value > 0 && std::isfinite(value); };
  require(is_positive(options.max_lr), "max_lr", options.max_lr, "use a learning rate above 0");
  require(is_positive(options.div_factor), "div_factor", options.div_factor,
          "use a number above 0 (default 25)");
  require(is_positive(options.final_div_factor), "final_div_factor", options.final_div_factor,
          "use a number above 0 (default 1e4)");
  require(options.pct_start >= 0 && options.pct_start <= 1, "pct_start", options.pct_start,
          "set it to the share of steps in which the rate rises, from 0 to 1");
  if (options.total_steps == 0) options.total_steps = options.epochs * options.steps_per_epoch;
  require(options.total_steps >= 1, "total_steps", static_cast<double>(options.total_steps),
          "set it to 1 optimizer step or more, or set epochs and steps_per_epoch");
  return options;
}

// A phase of the cycle. `end_step` need not be an integer, because it is computed from a
// fraction of the steps, as in PyTorch.
struct Phase {
  double end_step, start_lr, end_lr, start_momentum, end_momentum;
};

std::vector<Phase> phases_of(const OneCycleLROptions& of, double initial) {
  const double least = initial / of.final_div_factor;
  const auto last = static_cast<double>(of.total_steps - 1);
  const double steps = static_cast<double>(of.total_steps), rising = of.pct_start;
  const double high = of.max_momentum, low = of.base_momentum;
  std::vector<Phase> phases{{rising * steps - 1, initial, of.max_lr, high, low}};
  if (of.three_phase) {
    phases.push_back({2 * rising * steps - 2, of.max_lr, initial, low, high});
    phases.push_back({last, initial, least, high, high});
  } else {
    phases.push_back({last, of.max_lr, least, low, high});
  }
  // A first phase that ends at step 0 would cause a division by zero.
  require_option(phases[0].end_step != 0, "OneCycleLR", "pct_start", rising,
                 "set it so that the rate rises for more than one step");
  return phases;
}

double anneal(OneCycleLROptions::Anneal along, double start, double end, double part) {
  if (along == OneCycleLROptions::Anneal::kLinear) return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

// Returns the function that computes the rate of an epoch. The function also sets the optimizer's
// momentum.
auto cycle_of(Optimizer& optimizer, const OneCycleLROptions& options) {
  const OneCycleLROptions of = checked(options);
  const double initial = of.max_lr / of.div_factor;
  std::vector<Phase> phases = phases_of(of, initial);
  if (of.cycle_momentum) {
    // set_momentum checks the value that it sets, so both momenta are set here. max_momentum is set
    // last, because it is the momentum of the first step.
    for (const double each : {of.base_momentum, of.max_momentum}) optimizer.set_momentum(each);
  }
  state_of(optimizer).begin_schedules_at(initial);
  return [&optimizer, of, phases = std::move(phases)](const auto& at) {
    if (at.epoch > of.total_steps) {
      throw StateError(
          {.what = fmt::format("OneCycleLR: step {} is after the last of {} steps", at.epoch,
                               of.total_steps),
           .hint = "set total_steps to the number of optimizer steps of the whole run"});
    }
    const auto step = static_cast<double>(at.epoch);
    size_t phase = 0;
    double begin = 0;
    while (step > phases[phase].end_step && phase + 1 < phases.size()) {
      begin = phases[phase++].end_step;
    }
    const Phase& now = phases[phase];
    // `part` is at most 1, so the call after the last step keeps the rate. PyTorch's rate would
    // continue to fall below 0.
    const double part = std::min(1.0, (step - begin) / (now.end_step - begin));
    const auto value = [&](double start, double end) {
      return anneal(of.anneal_strategy, start, end, part);
    };
    if (of.cycle_momentum) optimizer.set_momentum(value(now.start_momentum, now.end_momentum));
    return value(now.start_lr, now.end_lr);
  };
}

}  // namespace

OneCycleLR::OneCycleLR(Optimizer& optimizer, OneCycleLROptions options)
    : LRScheduler(optimizer, "OneCycleLR", cycle_of(optimizer, options)) {}

void OneCycleLR::restore(const LRSchedulerState&) {
  next(last_lr(), last_lr());  // sets the momentum of the epoch; the returned rate is not used
}

}  // namespace fsdp
