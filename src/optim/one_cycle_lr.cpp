#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fsdp/error.h"
#include "fsdp/lr_scheduler.h"
#include "optim/scheduler_checks.h"

namespace fsdp {
namespace {

OneCycleLROptions checked(OneCycleLROptions options) {
  const auto require = [](bool holds, std::string_view option, double value,
                          std::string_view allowed) {
    require_option(holds, "OneCycleLR", option, value, allowed);
  };
  const auto is_positive = [](double value) { return value > 0 && std::isfinite(value); };
  require(is_positive(options.max_lr), "max_lr", options.max_lr, "a learning rate above 0");
  require(is_positive(options.div_factor), "div_factor", options.div_factor,
          "a number above 0; 25 as a rule");
  require(is_positive(options.final_div_factor), "final_div_factor", options.final_div_factor,
          "a number above 0; 1e4 as a rule");
  require(options.pct_start >= 0 && options.pct_start <= 1, "pct_start", options.pct_start,
          "the part of the steps in which the rate rises, from 0 to 1");
  if (options.total_steps == 0) options.total_steps = options.epochs * options.steps_per_epoch;
  require(options.total_steps >= 1, "total_steps", static_cast<double>(options.total_steps),
          "a number of optimizer steps, at least 1; or epochs and steps_per_epoch");
  return options;
}

}  // namespace

OneCycleLR::OneCycleLR(Optimizer& optimizer, OneCycleLROptions options)
    : LRScheduler(optimizer, "OneCycleLR"), options_(checked(options)) {
  const double initial = options_.max_lr / options_.div_factor;
  const double least = initial / options_.final_div_factor;
  const auto last = static_cast<double>(options_.total_steps - 1);
  const double steps = static_cast<double>(options_.total_steps), rising = options_.pct_start;
  const double high = options_.max_momentum, low = options_.base_momentum;
  phases_.push_back({rising * steps - 1, initial, options_.max_lr, high, low});
  if (options_.three_phase) {
    phases_.push_back({2 * rising * steps - 2, options_.max_lr, initial, low, high});
    phases_.push_back({last, initial, least, high, high});
  } else {
    phases_.push_back({last, options_.max_lr, least, low, high});
  }
  require_option(phases_[0].end_step != 0, "OneCycleLR", "pct_start", rising,
                 "not one step's part of total_steps: the rise would begin where it ends");
  if (options_.cycle_momentum) {
    for (const double each : {low, high}) optimizer.set_momentum(each);
  }
  set_initial_lr(initial);
  begin();
}

double OneCycleLR::anneal(double start, double end, double part) const {
  if (options_.anneal_strategy == OneCycleLROptions::Anneal::kLinear) {
    return (end - start) * part + start;
  }
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

double OneCycleLR::next_lr(double) {
  if (epoch() > options_.total_steps) {
    throw StateError(
        {.what = fmt::format("OneCycleLR: step {} of {}", epoch(), options_.total_steps),
         .hint = "total_steps is the number of optimizer steps of the whole run"});
  }
  const auto step = static_cast<double>(epoch());
  size_t phase = 0;
  double begin = 0;
  while (step > phases_[phase].end_step && phase + 1 < phases_.size()) {
    begin = phases_[phase++].end_step;
  }
  const Phase& now = phases_[phase];
  // At most 1: what the call after the last step sets is not PyTorch's, which runs on past the end,
  // on a line below 0.
  const double part = std::min(1.0, (step - begin) / (now.end_step - begin));
  if (options_.cycle_momentum) {
    optimizer().set_momentum(anneal(now.start_momentum, now.end_momentum, part));
  }
  return anneal(now.start_lr, now.end_lr, part);
}

void OneCycleLR::restore(const LRSchedulerState&) {
  next_lr(0);  // for the momentum of the epoch
}

}  // namespace fsdp
