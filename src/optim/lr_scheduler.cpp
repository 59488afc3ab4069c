// Formulas, and the order of their operations: torch/optim/lr_scheduler.py, get_lr of each class.
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
constexpr const char* kGamma = "a factor, finite and at least 0; 0.1 as a rule";

StepLROptions checked(StepLROptions options) {
  require_option(options.step_size >= 1, "StepLR", "step_size",
                 static_cast<double>(options.step_size), "a number of epochs, at least 1");
  require_option(is_gamma(options.gamma), "StepLR", "gamma", options.gamma, kGamma);
  return options;
}

MultiStepLROptions checked(MultiStepLROptions options) {
  require_option(is_gamma(options.gamma), "MultiStepLR", "gamma", options.gamma, kGamma);
  return options;
}

ExponentialLROptions checked(ExponentialLROptions options) {
  require_option(options.gamma > 0 && is_gamma(options.gamma), "ExponentialLR", "gamma",
                 options.gamma, "a factor, finite and above 0, as 0.99");
  return options;
}

LinearLROptions checked(LinearLROptions options) {
  require_option(options.start_factor > 0 && options.start_factor <= 1, "LinearLR", "start_factor",
                 options.start_factor, "above 0 and at most 1");
  require_option(options.end_factor >= 0 && options.end_factor <= 1, "LinearLR", "end_factor",
                 options.end_factor, "from 0 to 1");
  require_option(options.total_iters >= 1, "LinearLR", "total_iters",
                 static_cast<double>(options.total_iters), "a number of epochs, at least 1");
  return options;
}

CosineAnnealingLROptions checked(CosineAnnealingLROptions options) {
  require_option(options.T_max >= 1, "CosineAnnealingLR", "T_max",
                 static_cast<double>(options.T_max), "a number of epochs, at least 1");
  require_option(options.eta_min >= 0 && std::isfinite(options.eta_min), "CosineAnnealingLR",
                 "eta_min", options.eta_min, "a learning rate, finite and at least 0");
  return options;
}

std::string prefix_of(size_t scheduler) { return fmt::format("schedulers.{}.", scheduler); }

}  // namespace

LRScheduler::LRScheduler(Optimizer& optimizer, std::string_view name)
    : optimizer_(optimizer), place_(place_of_scheduler(optimizer, name)) {
  std::optional<double>& initial = optimizer.state().initial_lr;
  if (!initial) initial = optimizer.lr();
  base_lr_ = *initial;
}

double LRScheduler::initial_lr() const { return optimizer_.state().initial_lr.value(); }

void LRScheduler::set_initial_lr(double lr) {
  optimizer_.state().initial_lr = lr;
  base_lr_ = lr;
}

void LRScheduler::step() {
  ++last_epoch_;
  set(next_lr(optimizer_.lr()));
}

void LRScheduler::start(double lr) {
  last_epoch_ = 0;
  set(next_lr(lr));
}

void LRScheduler::set(double lr) {
  optimizer_.set_lr(lr);
  last_lr_ = lr;
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
  restore(state);
  set(state.at("last_lr"));
}

StepLR::StepLR(Optimizer& optimizer, StepLROptions options)
    : LRScheduler(optimizer, "StepLR"), options_(checked(options)) {
  begin();
}

double StepLR::next_lr(double lr) {
  return epoch() == 0 || epoch() % options_.step_size != 0 ? lr : lr * options_.gamma;
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, MultiStepLROptions options)
    : LRScheduler(optimizer, "MultiStepLR"), options_(checked(std::move(options))) {
  begin();
}

double MultiStepLR::next_lr(double lr) {
  const auto times = std::ranges::count(options_.milestones, epoch());
  return times == 0 ? lr : lr * std::pow(options_.gamma, static_cast<double>(times));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, ExponentialLROptions options)
    : LRScheduler(optimizer, "ExponentialLR"), options_(checked(options)) {
  begin();
}

double ExponentialLR::next_lr(double lr) { return epoch() == 0 ? lr : lr * options_.gamma; }

LinearLR::LinearLR(Optimizer& optimizer, LinearLROptions options)
    : LRScheduler(optimizer, "LinearLR"), options_(checked(options)) {
  begin();
}

double LinearLR::next_lr(double lr) {
  const auto& [start, end, total] = options_;
  if (epoch() == 0) return lr * start;
  if (epoch() > total) return lr;
  const double before = static_cast<double>(total) * start +
                        static_cast<double>(epoch() - 1) * (end - start);  // · total
  return std::max(0.0, lr * (1.0 + (end - start) / before));  // a last step to 0 may round below
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, CosineAnnealingLROptions options)
    : LRScheduler(optimizer, "CosineAnnealingLR"), options_(checked(options)) {
  begin();
}

double CosineAnnealingLR::next_lr(double lr) {
  const auto [T_max, eta_min] = options_;
  const auto last = static_cast<double>(T_max);
  const auto at = [last](int64_t epoch) {
    return 1 + std::cos(std::numbers::pi * static_cast<double>(epoch) / last);
  };
  if (epoch() == 0) return lr;
  // Where it was at its lowest, which no factor leads away from.
  if ((epoch() - 1 - T_max) % (2 * T_max) == 0) {
    return lr + (base_lr() - eta_min) * (1 - std::cos(std::numbers::pi / last)) / 2;
  }
  return at(epoch()) / at(epoch() - 1) * (lr - eta_min) + eta_min;
}

LambdaLR::LambdaLR(Optimizer& optimizer, std::function<double(int64_t epoch)> lr_lambda)
    : LRScheduler(optimizer, "LambdaLR"), lr_lambda_(std::move(lr_lambda)) {
  begin();
}

LambdaLR::LambdaLR(Optimizer& optimizer, const LrSchedule& schedule)
    : LambdaLR(optimizer, [schedule](int64_t epoch) { return schedule.factor(epoch); }) {}

double LambdaLR::next_lr(double) { return base_lr() * lr_lambda_(epoch()); }

SequentialLR::SequentialLR(Optimizer& optimizer, SequentialLROptions options)
    : LRScheduler(optimizer, "SequentialLR"), options_(std::move(options)) {
  const auto& [schedulers, milestones] = options_;
  if (schedulers.size() != milestones.size() + 1 || !std::ranges::is_sorted(milestones)) {
    throw InvalidArgument({.what = fmt::format("SequentialLR: {} schedulers with {} milestones",
                                               schedulers.size(), milestones.size()),
                           .hint = "one milestone, rising, before each scheduler but the first"});
  }
  for (const LRScheduler* each : schedulers) {
    if (each != nullptr && &each->optimizer() == &optimizer) continue;
    throw InvalidArgument({.what = "SequentialLR: a scheduler of another optimizer",
                           .hint = "make all of them for the optimizer that it is made for"});
  }
  optimizer.set_lr(initial_lr());  // which the schedulers have changed when they were made
  begin();
}

double SequentialLR::next_lr(double lr) {
  const auto& [schedulers, milestones] = options_;
  const auto next = std::ranges::upper_bound(milestones, epoch());
  LRScheduler& now = *schedulers[next - milestones.begin()];
  if (epoch() == 0) {
    now.start(lr);
  } else if (next != milestones.begin() && *(next - 1) == epoch()) {
    now.start(now.base_lr());
  } else {
    now.step();
  }
  return now.last_lr();
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
