// Learning-rate schedulers: torch.optim.lr_scheduler's, by its names, options and values.
//
//   fsdp::AdamW optimizer(engine, {.lr = 3e-4});
//   fsdp::LinearLR warmup(optimizer, {.start_factor = 0.01, .total_iters = 100});
//   fsdp::CosineAnnealingLR cosine(optimizer, {.T_max = 900});
//   fsdp::SequentialLR scheduler(optimizer,
//                                {.schedulers = {&warmup, &cosine}, .milestones = {100}});
//   …
//   optimizer.step();
//   scheduler.step();
//
// A scheduler sets the optimizer's rate when it is made, for the first step, and at each step() for
// the next one; `epoch` counts these calls, whatever they stand for. It begins with the rate that
// the optimizer had when its first scheduler was made, and multiplies the one it finds, as
// PyTorch's "chainable" form: set_lr in between takes part. Groups follow by their lr_scale. A
// group with a rate of its own (OptimizerParamGroup::set_lr) has it changed as the optimizer's is,
// from its own beginning.
// Requires: the optimizer lives longer. No call is collective, and all ranks make the same: a rate
//   that differs between ranks is an error that names both, with the collective after the
//   optimizer's step.
// Errors: InvalidArgument for options that are no schedule; a step() whose rate would be negative
//   or not finite throws as Optimizer::set_lr.
//
// torch::optim's optimizers on Engine::parameters() have LibTorch's own schedulers.
#pragma once

#include <fsdp/optim.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class TrainingPlace;  // engine/training_objects.h

// What a run that goes on needs to know of a scheduler, by PyTorch's names: "last_epoch", … Options
// are not in it: the scheduler is made with the same ones again, and then loads it; the rate that
// the optimizer has meanwhile does not matter.
using LRSchedulerState = std::map<std::string, double>;

// What all share but ReduceLROnPlateau.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // Call it after the optimizer's step: before it, the first rate of the schedule is never used.
  void step();
  double last_lr() const { return last_lr_; }

  LRSchedulerState state() const;
  // Sets the optimizer's rate, too: of several schedulers on one optimizer, load that last whose
  // step() comes last.
  // Errors: InvalidArgument for the state of another kind of scheduler; the own is as it was.
  void load(const LRSchedulerState& state);

 protected:
  // A rate on its way: the epoch to come, the rate before it, and the one it began with.
  struct Place {
    int64_t epoch = 0;
    double lr = 0;
    double base_lr = 0;
  };
  // The rate of an epoch; at epoch 0 from the one to begin with.
  using NextLr = std::function<double(const Place&)>;
  // Sets the rate of epoch 0, if there is a `next`. `name`: its class, by which Engine::describe
  // lists it.
  LRScheduler(Optimizer& optimizer, std::string_view name, NextLr next);

  Optimizer& optimizer() const { return optimizer_; }
  double next(double lr, double base_lr) const { return next_({last_epoch_, lr, base_lr}); }
  int64_t epoch() const { return last_epoch_; }
  // Sets the rates of epoch 0: from those of now, or with `restarts` from those at the beginning.
  void start(bool restarts);

 private:
  friend class SequentialLR;
  // Sets the rates of epoch().
  virtual void advance(bool restarts);
  virtual void add_state(LRSchedulerState&) const {}
  virtual void restore(const LRSchedulerState&) {}  // epoch() is already

  Optimizer& optimizer_;
  const std::shared_ptr<const TrainingPlace> place_;
  const NextLr next_;
  double base_lr_;
  double last_lr_ = 0;
  int64_t last_epoch_ = 0;
};

struct StepLROptions {
  int64_t step_size = 0;  // at least 1
  double gamma = 0.1;
};

// Times gamma every step_size epochs.
class StepLR : public LRScheduler {
 public:
  StepLR(Optimizer& optimizer, StepLROptions options);
};

struct MultiStepLROptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};

// Times gamma at each milestone, as often as it is listed.
class MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(Optimizer& optimizer, MultiStepLROptions options);
};

struct ExponentialLROptions {
  double gamma = 0;
};

// Times gamma every epoch.
class ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(Optimizer& optimizer, ExponentialLROptions options);
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  // above 0, at most 1
  double end_factor = 1.0;        // from 0 to 1
  int64_t total_iters = 5;        // at least 1
};

// From start_factor to end_factor of the rate in total_iters epochs, on a line: a warm-up.
class LinearLR : public LRScheduler {
 public:
  explicit LinearLR(Optimizer& optimizer, LinearLROptions options = {});
};

struct CosineAnnealingLROptions {
  int64_t T_max = 0;  // at least 1
  double eta_min = 0;
};

// To eta_min in T_max epochs along half a cosine, and up again after it. Loshchilov and Hutter,
// "SGDR: Stochastic Gradient Descent with Warm Restarts" (2016), without the restarts.
class CosineAnnealingLR : public LRScheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, CosineAnnealingLROptions options);
};

// The rate to begin with times lr_lambda(epoch), which is not part of the state. With a LrSchedule
// Hugging Face's get_linear_schedule_with_warmup, get_cosine_… and get_constant_….
class LambdaLR : public LRScheduler {
 public:
  LambdaLR(Optimizer& optimizer, std::function<double(int64_t epoch)> lr_lambda);
  LambdaLR(Optimizer& optimizer, const LrSchedule& schedule);
};

struct SequentialLROptions {
  std::vector<LRScheduler*> schedulers;  // of the same optimizer
  std::vector<int64_t> milestones;       // rising; one fewer than schedulers
};

// The first scheduler until the first milestone, where the second one begins at its epoch 0, and so
// on. Step this one, not those in it, which live longer; its state has theirs.
class SequentialLR : public LRScheduler {
 public:
  SequentialLR(Optimizer& optimizer, SequentialLROptions options);

 private:
  void advance(bool restarts) override;
  void add_state(LRSchedulerState& state) const override;
  void restore(const LRSchedulerState& state) override;
  const SequentialLROptions options_;
};

struct OneCycleLROptions {
  enum class Anneal : uint8_t { kCos, kLinear };
  double max_lr = 0;
  int64_t total_steps = 0;  // or, where it is 0, epochs times steps_per_epoch
  int64_t epochs = 0;
  int64_t steps_per_epoch = 0;
  double pct_start = 0.3;
  Anneal anneal_strategy = Anneal::kCos;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};

// From max_lr / div_factor up to max_lr and down to max_lr / div_factor / final_div_factor within
// total_steps; the momentum (AdamW's beta1) meanwhile from max_momentum to base_momentum and back,
// by Optimizer::set_momentum. The call after the last step leaves the rate at its end, where
// PyTorch's runs on past it. Smith and Topin, "Super-Convergence" (2017).
// Errors: of the constructor, as set_momentum; StateError from step() after total_steps.
class OneCycleLR : public LRScheduler {
 public:
  OneCycleLR(Optimizer& optimizer, OneCycleLROptions options);

 private:
  void restore(const LRSchedulerState& state) override;
};

struct ReduceLROnPlateauOptions {
  enum class Mode : uint8_t { kMin, kMax };
  enum class Threshold : uint8_t { kRel, kAbs };
  Mode mode = Mode::kMin;
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  Threshold threshold_mode = Threshold::kRel;
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;
};

// Times factor when a metric has not improved for more than `patience` calls.
//   scheduler.step(mesh.mean(validation_loss));
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});
  ReduceLROnPlateau(const ReduceLROnPlateau&) = delete;
  ReduceLROnPlateau& operator=(const ReduceLROnPlateau&) = delete;

  // Requires: the same metric on every rank.
  void step(double metric);
  double last_lr() const { return last_lr_; }

  // As LRScheduler's.
  LRSchedulerState state() const;
  void load(const LRSchedulerState& state);

 private:
  bool is_better(double metric) const;

  Optimizer& optimizer_;
  const std::shared_ptr<const TrainingPlace> place_;
  const ReduceLROnPlateauOptions options_;
  double last_lr_;
  double best_;
  int64_t num_bad_epochs_ = 0;
  int64_t cooldown_counter_ = 0;
};

}  // namespace fsdp
