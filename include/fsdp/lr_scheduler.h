// Learning-rate schedulers with the names, options and values of torch.optim.lr_scheduler.
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
// The constructor of a scheduler sets the learning rate for the optimizer's first step. Each step()
// sets the rate for the optimizer's next step. `epoch` is the number of calls of step(). The
// initial rate is the rate that the optimizer had when its first scheduler was made. Each step()
// multiplies the current rate (PyTorch's "chainable" form), so a set_lr between two calls of step()
// also changes all later rates. The rate of a group is the optimizer's rate times the group's
// lr_scale. If a group has its own rate (OptimizerParamGroup::set_lr), the scheduler computes this
// rate in the same way, from the group's own initial rate.
// Requires: the optimizer outlives its schedulers. No call is collective, but all ranks must make
//   the same calls. If they do not, the collective after the optimizer's step throws and names both
//   rates.
// Errors: InvalidArgument for invalid options. If the next rate is negative or not finite, step()
//   throws as Optimizer::set_lr does.
//
// torch::optim's optimizers, made on Engine::parameters(), use LibTorch's own schedulers.
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

// The state of a scheduler that a resumed run needs, with PyTorch's names: "last_epoch", … The
// state does not contain the options: make the scheduler with the same options, then load the
// state. load() overwrites the optimizer's rate.
using LRSchedulerState = std::map<std::string, double>;

// The base of all schedulers except ReduceLROnPlateau.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // Sets the rate of the optimizer's next step. Call this function after the optimizer's step. If
  // it is called before the optimizer's first step, no step uses the rate of epoch 0.
  void step();
  double last_lr() const { return last_lr_; }

  LRSchedulerState state() const;
  // Restores the state and sets the optimizer's rate. If an optimizer has several schedulers, the
  // scheduler whose step() is called last must be loaded last.
  // Errors: InvalidArgument if the state is of another kind of scheduler. This scheduler's state is
  //   then unchanged.
  void load(const LRSchedulerState& state);

 protected:
  // Input of a schedule: the epoch whose rate is to be computed, the rate of the previous epoch,
  // and the initial rate.
  struct Place {
    int64_t epoch = 0;
    double lr = 0;
    double base_lr = 0;
  };
  // Returns the rate of an epoch. For epoch 0, `lr` is the initial rate.
  using NextLr = std::function<double(const Place&)>;
  // Sets the optimizer's rate to that of epoch 0. If `next` is empty, does not change the rate.
  // `name` is the class name, which Engine::describe lists.
  LRScheduler(Optimizer& optimizer, std::string_view name, NextLr next);

  Optimizer& optimizer() const { return optimizer_; }
  double next(double lr, double base_lr) const { return next_({last_epoch_, lr, base_lr}); }
  int64_t epoch() const { return last_epoch_; }
  // Sets the optimizer's rates to those of epoch 0. The rates are computed from the initial rates
  // if `restarts` is true, else from the current rates.
  void start(bool restarts);

 private:
  friend class SequentialLR;
  friend struct TrainingPlaceAccess;  // internal: src/optim/training_place_access.h
  // Sets the optimizer's rates to those of epoch(). `restarts` has the meaning that it has in
  // start().
  virtual void advance(bool restarts);
  virtual void add_state(LRSchedulerState&) const {}
  virtual void restore(const LRSchedulerState&) {}  // called after epoch() was restored
  // Returns the schedulers whose states are parts of this scheduler's state.
  virtual std::vector<LRScheduler*> inner() const { return {}; }

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

// Multiplies the rate by gamma every step_size epochs.
class StepLR : public LRScheduler {
 public:
  StepLR(Optimizer& optimizer, StepLROptions options);
};

struct MultiStepLROptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};

// Multiplies the rate by gamma at each milestone, once for each time that the milestone is listed.
class MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(Optimizer& optimizer, MultiStepLROptions options);
};

struct ExponentialLROptions {
  double gamma = 0;
};

// Multiplies the rate by gamma every epoch.
class ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(Optimizer& optimizer, ExponentialLROptions options);
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  // above 0, at most 1
  double end_factor = 1.0;        // from 0 to 1
  int64_t total_iters = 5;        // at least 1
};

// Multiplies the rate by a factor that changes linearly from start_factor to end_factor within
// total_iters epochs. Typical use is a warm-up.
class LinearLR : public LRScheduler {
 public:
  explicit LinearLR(Optimizer& optimizer, LinearLROptions options = {});
};

struct CosineAnnealingLROptions {
  int64_t T_max = 0;  // at least 1
  double eta_min = 0;
};

// Lowers the rate to eta_min within T_max epochs along half a cosine, and raises it again
// afterwards. Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts"
// (2016). This class implements the cosine without the restarts.
class CosineAnnealingLR : public LRScheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, CosineAnnealingLROptions options);
};

// Sets the rate to the initial rate times lr_lambda(epoch). The state does not contain lr_lambda.
// With an LrSchedule as lr_lambda, this class equals Hugging Face's
// get_linear_schedule_with_warmup, get_cosine_… or get_constant_….
class LambdaLR : public LRScheduler {
 public:
  LambdaLR(Optimizer& optimizer, std::function<double(int64_t epoch)> lr_lambda);
  LambdaLR(Optimizer& optimizer, const LrSchedule& schedule);
};

struct SequentialLROptions {
  std::vector<LRScheduler*> schedulers;  // of the same optimizer
  std::vector<int64_t> milestones;       // ascending; one fewer than schedulers
};

// Runs its schedulers one after the other. At each milestone the next scheduler begins at its own
// epoch 0. Call step() only on the SequentialLR. The schedulers must outlive it. The state of a
// SequentialLR contains the states of its schedulers.
class SequentialLR : public LRScheduler {
 public:
  SequentialLR(Optimizer& optimizer, SequentialLROptions options);

 private:
  void advance(bool restarts) override;
  void add_state(LRSchedulerState& state) const override;
  void restore(const LRSchedulerState& state) override;
  std::vector<LRScheduler*> inner() const override { return options_.schedulers; }
  const SequentialLROptions options_;
};

struct OneCycleLROptions {
  enum class Anneal : uint8_t { kCos, kLinear };
  double max_lr = 0;
  int64_t total_steps = 0;  // 0: epochs times steps_per_epoch
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

// Raises the rate from max_lr / div_factor to max_lr, then lowers it to max_lr / div_factor /
// final_div_factor, within total_steps. Momentum (AdamW's beta1) changes from max_momentum to
// base_momentum and back, through Optimizer::set_momentum. If step() is called once after each of
// the total_steps optimizer steps, its last call leaves the final rate unchanged, whereas PyTorch
// would lower the rate further.
// Source: Smith and Topin, "Super-Convergence" (2017).
// Errors: the constructor throws as Optimizer::set_momentum does. Further calls of step() throw
//   StateError.
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

// Multiplies the rate by `factor` after more than `patience` consecutive calls of step() without an
// improvement of the metric.
//   scheduler.step(mesh.mean(validation_loss));
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});
  ReduceLROnPlateau(const ReduceLROnPlateau&) = delete;
  ReduceLROnPlateau& operator=(const ReduceLROnPlateau&) = delete;

  // Requires: the metric is the same on every rank.
  void step(double metric);
  double last_lr() const { return last_lr_; }

  // Return and restore the state, as the functions of LRScheduler do.
  LRSchedulerState state() const;
  void load(const LRSchedulerState& state);

 private:
  friend struct TrainingPlaceAccess;  // internal: src/optim/training_place_access.h
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
