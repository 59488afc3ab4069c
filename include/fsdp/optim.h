// Optimizers on flat shards. Each updates every segment in one pass over memory, and its state is
// sharded as the main shards are. Results equal those of torch::optim on Engine::parameters().
//
//   fsdp::AdamW generator(engine, {.lr = 2e-4, .parameters = fsdp::under("generator")});
//   fsdp::AdamW discriminator(engine, torch::optim::AdamWOptions(1e-4));  // of all parameters
#pragma once

#include <fsdp/engine.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch::optim {
class OptimizerOptions;
struct AdamWOptions;
struct SGDOptions;
}  // namespace torch::optim

namespace fsdp {

// A predicate on a parameter's name and shape. In its argument `local` is undefined and `begin` is
// 0.
using ParameterMatch = std::function<bool(const ShardedParameter&)>;

// Returns a match for the parameters of a module and of the modules inside it: under("generator")
// matches "generator.up.weight" and not "generator2.weight". An empty name matches all.
ParameterMatch under(std::string module);

// Returns true for biases and normalisation weights (at most one dimension), which are usually
// exempt from weight decay.
bool is_bias_or_norm(const ShardedParameter& parameter);

// Settings for the parameters that `match` accepts. A parameter is in the first group that matches
// it.
struct ParameterGroup {
  ParameterMatch match;
  double weight_decay = 0.0;
  double lr_scale = 1.0;
  std::string name{};  // unique; empty: "group 1" for the first group, and so on
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool bias_correction = true;
  ParameterMatch parameters{};  // trained parameters; empty: all of the engine's
  std::vector<ParameterGroup> groups{};
  // true: all ranks skip the whole step if any rank has a non-finite gradient.
  bool skip_nonfinite = true;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  ParameterMatch parameters{};  // as in AdamWOptions
  std::vector<ParameterGroup> groups{};
  bool skip_nonfinite = true;
};

// The report of an issued step. Reading it waits, as for GradientReport.
struct StepReport {
  GradientReport gradients;  // empty if nothing was measured: neither clipping nor skipping
  bool skips_nonfinite = true;
  // Returns true if a gradient was not finite; parameters and state are then unchanged. A graph
  // kept from before the step is stale all the same: its next backward throws.
  bool skipped() const { return skips_nonfinite && !gradients.finite(); }
};

// Parameters of an optimizer that share a learning rate and a weight decay. A new value applies
// from the next step on.
// Requires: all ranks set the same values; the collective after the optimizer's step reports a
//   difference and names both.
class OptimizerParamGroup {
 public:
  OptimizerParamGroup(std::string name, double lr_scale, double weight_decay,
                      const double* optimizer_lr);

  const std::string& name() const { return name_; }  // "default": in no ParameterGroup
  // Returns the optimizer's lr() times lr_scale, until set_lr gives the group its own rate.
  // Schedulers change that rate, from its current value, as they change the optimizer's.
  double lr() const { return own_lr_ ? *own_lr_ : *optimizer_lr_ * lr_scale_; }
  // Errors: InvalidArgument for a rate or decay that is negative or not finite.
  void set_lr(double lr);
  double weight_decay() const { return set_decay_.value_or(weight_decay_); }
  void set_weight_decay(double weight_decay);

 private:
  friend class Optimizer;  // and its State
  std::string name_;
  double lr_scale_;
  double weight_decay_;  // from the options
  const double* optimizer_lr_;
  std::optional<double> own_lr_;
  std::optional<double> set_decay_;
  double initial_lr_ = 0;  // lr() when the optimizer's first scheduler was made
};

// The base of AdamW and SGD. An engine may have several optimizers with disjoint parameters. At the
// first step, a trainable parameter without an optimizer causes a warning (MeshOptions::on_event).
// Requires: the engine is alive, or calls throw. All calls are collective, between steps, except
//   those about lr, momentum, groups and steps.
// Effects: calls issue work and do not wait for it; the device decides the clip coefficient
//   and whether a step is skipped.
// Errors of constructors: InvalidArgument for invalid options, for `parameters` or groups that
//   match nothing, and for two groups of one name; StateError for a parameter that another
//   optimizer of the engine trains.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Measures the total norm of its parameters' gradients before clipping (norm_type 1, 2 or
  // infinity), with one all_reduce if optimizer state is sharded. The next step() scales the
  // gradients, so they are read once.
  // Errors: InvalidArgument if max_norm is negative or NaN, or for another norm_type.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);
  // Updates the parameters and their state, and returns the step's report. Gradients stay until
  // zero_grad.
  // Errors: StateError if gradients wait to be reduced (GradSync), or if some were added after
  //   clip_grad_norm.
  StepReport step();
  // Frees the gradients of its parameters.
  void zero_grad();

  double lr() const;
  void set_lr(double lr);
  // Returns the default group, then those of the options in their order.
  //   for (auto& group : optimizer.param_groups()) group.set_lr(0.1);
  std::span<OptimizerParamGroup> param_groups();
  // Return and set SGD's momentum or AdamW's beta1, which OneCycleLR changes. A new value applies
  // from the next step on, also to AdamW's bias correction, as if it had been set from the start.
  // Errors: set_momentum: InvalidArgument for a value that is not between 0 and 1, and for an SGD
  //   made without momentum, which has no buffer for it.
  double momentum() const;
  void set_momentum(double momentum);
  int64_t steps() const;  // number of applied steps; waits for them

  struct State;

 protected:
  friend struct OptimizerAccess;  // internal: src/optim/optimizer_state.h
  explicit Optimizer(std::unique_ptr<State> state);
  // Checks LibTorch's options. Errors: InvalidArgument if amsgrad is set, which no optimizer here
  // supports.
  static void require_no_amsgrad(bool amsgrad);
  std::unique_ptr<State> state_;
};

// Options of torch::optim. A program that passes them includes their header.
template <class Options>
concept TorchOptions = std::derived_from<Options, torch::optim::OptimizerOptions>;

class AdamW : public Optimizer {
 public:
  AdamW(Engine& engine, AdamWOptions options);
  // Errors: InvalidArgument for amsgrad.
  template <TorchOptions Options>
  AdamW(Engine& engine, const Options& options) : AdamW(engine, options_of(options)) {}

 private:
  template <class Options>
  static AdamWOptions options_of(const Options& options) {
    static_assert(std::derived_from<Options, torch::optim::AdamWOptions>,
                  "fsdp::AdamW takes torch::optim::AdamWOptions; Adam's weight decay differs");
    require_no_amsgrad(options.amsgrad());
    const auto [beta1, beta2] = options.betas();
    return {.lr = options.lr(),
            .beta1 = beta1,
            .beta2 = beta2,
            .eps = options.eps(),
            .weight_decay = options.weight_decay()};
  }
};

class SGD : public Optimizer {
 public:
  SGD(Engine& engine, SgdOptions options);
  template <TorchOptions Options>
  SGD(Engine& engine, const Options& options) : SGD(engine, options_of(options)) {}

 private:
  template <class Options>
  static SgdOptions options_of(const Options& options) {
    static_assert(std::derived_from<Options, torch::optim::SGDOptions>,
                  "fsdp::SGD takes torch::optim::SGDOptions");
    return {.lr = options.lr(),
            .momentum = options.momentum(),
            .dampening = options.dampening(),
            .weight_decay = options.weight_decay(),
            .nesterov = options.nesterov()};
  }
};

// A learning-rate factor by step: linear warm-up from 0 over `warmup_steps`, then constant, or a
// decay to 0 at `total_steps`, linear or along half a cosine. The first step() (step 0) uses
// factor(0), as Hugging Face's schedulers do.
struct LrSchedule {
  enum class Shape : uint8_t { kConstant, kLinear, kCosine };
  Shape shape = Shape::kLinear;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  double factor(int64_t step) const;
};

}  // namespace fsdp
