// Implements the learning-rate schedulers. The formulas, and the order of their operations, are
// those of get_lr in each class of torch/optim/lr_scheduler.py.
#include "fsdp/lr_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "fsdp/error.h"
#include "optim/optimizer_state.h"
#include "optim/scheduler_checks.h"

namespace fsdp {
namespace {

bool is_gamma(double gamma) { return gamma >= 0 && std::isfinite(gamma); }
constexpr const char* kGamma = "use a finite factor of 0 or more, such as 0.1";
constexpr const char* kEpochs = "use 1 epoch or more";

// ---- next(options): checks the options, and returns the function that computes the rates ----

auto next(const StepLROptions& of) {
  require_option(of.step_size >= 1, "StepLR", "step_size", static_cast<double>(of.step_size),
                 kEpochs);
  require_option(is_gamma(of.gamma), "StepLR", "gamma", of.gamma, kGamma);
  return [of](const auto& at) {
    return at.epoch == 0 || at.epoch % of.step_size != 0 ? at.lr : at.lr * of.gamma;
  };
}

auto next(const MultiStepLROptions& of) {
  require_option(is_gamma(of.gamma), "MultiStepLR", "gamma", of.gamma, kGamma);
  return [of](const auto& at) {
    const auto times = std::ranges::count(of.milestones, at.epoch);
    return times == 0 ? at.lr : at.lr * std::pow(of.gamma, static_cast<double>(times));
  };
}

auto next(const ExponentialLROptions& of) {
  require_option(of.gamma > 0 && is_gamma(of.gamma), "ExponentialLR", "gamma", of.gamma,
                 "use a finite factor above 0, such as 0.99");
  return [of](const auto& at) { return at.epoch == 0 ? at.lr : at.lr * of.gamma; };
}

auto next(const LinearLROptions& of) {
  require_option(of.start_factor > 0 && of.start_factor <= 1, "LinearLR", "start_factor",
                 of.start_factor, "use a factor above 0 and at most 1");
  require_option(of.end_factor >= 0 && of.end_factor <= 1, "LinearLR", "end_factor", of.end_factor,
                 "use a factor from 0 to 1");
  require_option(of.total_iters >= 1, "LinearLR", "total_iters",
                 static_cast<double>(of.total_iters), kEpochs);
  return [of](const auto& at) {
    const auto& [start, end, total] = of;
    if (at.epoch == 0) return at.lr * start;
    if (at.epoch > total) return at.lr;
    // `before` is the factor of the previous epoch, multiplied by `total`.
    const double before = static_cast<double>(total) * start +
                          static_cast<double>(at.epoch - 1) * (end - start);  // times total
    // If `end` is 0, rounding may make the rate of the last epoch slightly negative.
    return std::max(0.0, at.lr * (1.0 + (end - start) / before));
  };
}

auto next(const CosineAnnealingLROptions& of) {
  require_option(of.T_max >= 1, "CosineAnnealingLR", "T_max", static_cast<double>(of.T_max),
                 kEpochs);
  require_option(of.eta_min >= 0 && std::isfinite(of.eta_min), "CosineAnnealingLR", "eta_min",
                 of.eta_min, kLearningRateHint);
  return [of](const auto& at) {
    const auto& [T_max, eta_min] = of;
    const auto last = static_cast<double>(T_max);
    const auto height = [last](int64_t epoch) {
      return 1 + std::cos(std::numbers::pi * static_cast<double>(epoch) / last);
    };
    if (at.epoch == 0) return at.lr;
    // Here the previous rate is eta_min. A factor on lr - eta_min, which is 0, cannot raise the
    // rate again, so the formula adds a term.
    if ((at.epoch - 1 - T_max) % (2 * T_max) == 0) {
      return at.lr + (at.base_lr - eta_min) * (1 - std::cos(std::numbers::pi / last)) / 2;
    }
    return height(at.epoch) / height(at.epoch - 1) * (at.lr - eta_min) + eta_min;
  };
}

std::string prefix_of(size_t scheduler) { return fmt::format("schedulers.{}.", scheduler); }

}  // namespace

LRScheduler::LRScheduler(Optimizer& optimizer, std::string_view name, NextLr next)
    : optimizer_(optimizer),
      place_(place_of_scheduler(optimizer, name)),
      next_(std::move(next)),
      base_lr_(state_of(optimizer).begin_schedules()) {
  // A SequentialLR has no `next`. Its own constructor starts it after the schedulers were checked.
  if (next_) start(/*restarts=*/false);
}

void LRScheduler::step() {
  ++last_epoch_;
  advance(/*restarts=*/false);
}

void LRScheduler::start(bool restarts) {
  last_epoch_ = 0;
  advance(restarts);
}

void LRScheduler::advance(bool restarts) {
  state_of(optimizer_).change_rates(base_lr_, [&](double lr, double base_lr) {
    return next(restarts ? base_lr : lr, base_lr);
  });
  last_lr_ = optimizer_.lr();
}

LRSchedulerState LRScheduler::state() const {
  LRSchedulerState state{{"last_epoch", static_cast<double>(last_epoch_)},
                         {"base_lr", base_lr_},
                         {"last_lr", last_lr_}};
  add_state(state);
  return state;
}

void LRScheduler::load(const LRSchedulerState& state) {
  require_same_names(this->state(), state);
  last_epoch_ = std::llround(state.at("last_epoch"));
  base_lr_ = state.at("base_lr");
  // restore() is called before the rate is set. SequentialLR's restore() loads its inner
  // schedulers, and each of them sets its own rate.
  restore(state);
  last_lr_ = state.at("last_lr");
  optimizer_.set_lr(last_lr_);
}

StepLR::StepLR(Optimizer& optimizer, StepLROptions options)
    : LRScheduler(optimizer, "StepLR", fsdp::next(options)) {}
MultiStepLR::MultiStepLR(Optimizer& optimizer, MultiStepLROptions options)
    : LRScheduler(optimizer, "MultiStepLR", fsdp::next(options)) {}
ExponentialLR::ExponentialLR(Optimizer& optimizer, ExponentialLROptions options)
    : LRScheduler(optimizer, "ExponentialLR", fsdp::next(options)) {}
LinearLR::LinearLR(Optimizer& optimizer, LinearLROptions options)
    : LRScheduler(optimizer, "LinearLR", fsdp::next(options)) {}
CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, CosineAnnealingLROptions options)
    : LRScheduler(optimizer, "CosineAnnealingLR", fsdp::next(options)) {}

LambdaLR::LambdaLR(Optimizer& optimizer, std::function<double(int64_t epoch)> lr_lambda)
    : LRScheduler(optimizer, "LambdaLR", [lambda = std::move(lr_lambda)](const Place& at) {
        return at.base_lr * lambda(at.epoch);
      }) {}

LambdaLR::LambdaLR(Optimizer& optimizer, const LrSchedule& schedule)
    : LambdaLR(optimizer, [schedule](int64_t epoch) { return schedule.factor(epoch); }) {}

SequentialLR::SequentialLR(Optimizer& optimizer, SequentialLROptions options)
    : LRScheduler(optimizer, "SequentialLR", nullptr), options_(std::move(options)) {
  const auto& [schedulers, milestones] = options_;
  if (schedulers.size() != milestones.size() + 1 || !std::ranges::is_sorted(milestones)) {
    throw InvalidArgument(
        {.what = fmt::format("SequentialLR: {} schedulers do not fit {} milestones",
                             schedulers.size(), milestones.size()),
         .hint = "pass one milestone per scheduler except the first, in rising order"});
  }
  for (const LRScheduler* each : schedulers) {
    if (each != nullptr && &each->optimizer() == &optimizer) continue;
    throw InvalidArgument({.what = "SequentialLR: a scheduler belongs to another optimizer",
                           .hint = "make all schedulers for the same optimizer"});
  }
  // The inner schedulers changed the rates when they were made, so the initial rates are restored
  // first.
  state_of(optimizer).change_rates(base_lr_, [](double, double initial) { return initial; });
  start(/*restarts=*/false);
}

void SequentialLR::advance(bool /*restarts*/) {
  const auto& [schedulers, milestones] = options_;
  const auto after = std::ranges::upper_bound(milestones, epoch());
  // `now` is the scheduler that follows the last reached milestone. At the milestone it restarts
  // from the initial rates, as in PyTorch.
  LRScheduler& now = *schedulers[after - milestones.begin()];
  if (epoch() == 0) {
    now.start(/*restarts=*/false);
  } else if (after != milestones.begin() && *(after - 1) == epoch()) {
    now.start(/*restarts=*/true);
  } else {
    now.step();
  }
  last_lr_ = now.last_lr();
}

void SequentialLR::add_state(LRSchedulerState& state) const {
  for (size_t i = 0; i < options_.schedulers.size(); ++i) {
    for (const auto& [name, value] : options_.schedulers[i]->state()) {
      state[prefix_of(i) + name] = value;
    }
  }
}

void SequentialLR::restore(const LRSchedulerState& state) {
  for (size_t i = 0; i < options_.schedulers.size(); ++i) {
    LRSchedulerState own;
    const std::string prefix = prefix_of(i);
    for (const auto& [name, value] : state) {
      if (name.starts_with(prefix)) own[name.substr(prefix.size())] = value;
    }
    options_.schedulers[i]->load(own);
  }
}

}  // namespace fsdp
