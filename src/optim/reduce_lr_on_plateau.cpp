#include <algorithm>
#include <cmath>
#include <limits>

#include "fsdp/lr_scheduler.h"
#include "optim/optimizer_state.h"
#include "optim/scheduler_checks.h"

namespace fsdp {
namespace {

using Mode = ReduceLROnPlateauOptions::Mode;
using Threshold = ReduceLROnPlateauOptions::Threshold;

ReduceLROnPlateauOptions checked(ReduceLROnPlateauOptions options) {
  const auto require = [](bool holds, std::string_view option, double value,
                          std::string_view allowed) {
    require_option(holds, "ReduceLROnPlateau", option, value, allowed);
  };
  require(options.factor >= 0 && options.factor < 1, "factor", options.factor,
          "use 0 to less than 1 (default 0.1)");
  require(options.min_lr >= 0 && std::isfinite(options.min_lr), "min_lr", options.min_lr,
          kLearningRateHint);
  return options;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : optimizer_(optimizer),
      place_(place_of_scheduler(optimizer, "ReduceLROnPlateau")),
      options_(checked(options)),
      last_lr_(optimizer.lr()),
      best_(options.mode == Mode::kMin ? std::numeric_limits<double>::infinity()
                                       : -std::numeric_limits<double>::infinity()) {}

// Returns true if the metric is better than the best metric so far, by PyTorch's rule. NaN is never
// better, so it counts as a bad epoch.
bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == Threshold::kRel;
  const double threshold = options_.threshold;
  if (options_.mode == Mode::kMin) {
    return metric < (relative ? best_ * (1.0 - threshold) : best_ - threshold);
  }
  return metric > (relative ? best_ * (threshold + 1.0) : best_ + threshold);
}

void ReduceLROnPlateau::step(double metric) {
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  // During a cooldown, bad epochs are not counted.
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > options_.patience) {
    state_of(optimizer_).change_rates(optimizer_.lr(), [this](double lr, double /*initial*/) {
      const double lower = std::max(lr * options_.factor, options_.min_lr);
      // A change smaller than eps is ignored, as in PyTorch.
      return lr - lower > options_.eps ? lower : lr;
    });
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
  last_lr_ = optimizer_.lr();
}

LRSchedulerState ReduceLROnPlateau::state() const {
  return {{"last_lr", last_lr_},
          {"best", best_},
          {"num_bad_epochs", static_cast<double>(num_bad_epochs_)},
          {"cooldown_counter", static_cast<double>(cooldown_counter_)}};
}

void ReduceLROnPlateau::load(const LRSchedulerState& state) {
  require_same_names(this->state(), state);
  optimizer_.set_lr(state.at("last_lr"));
  last_lr_ = state.at("last_lr");
  best_ = state.at("best");
  num_bad_epochs_ = std::llround(state.at("num_bad_epochs"));
  cooldown_counter_ = std::llround(state.at("cooldown_counter"));
}

}  // namespace fsdp
