// Optimizers on flat shards: AdamW, AdamW8bit, SGD, RAdam, Lion, LAMB, LARS. An optimizer updates
// each contiguous part of the shards in one pass over memory (LAMB and LARS: two). Its state is
// sharded as the main shards are. Results equal those of torch::optim on Engine::parameters(), or
// the published formula if LibTorch does not have the optimizer (kernels/lion.h).
//
//   fsdp::AdamW optimizer(engine, torch::optim::AdamWOptions(3e-4));  // trains all parameters
//
// If an engine has several optimizers, each of them needs its own parameters:
//
//   fsdp::AdamW generator(engine, {.lr = 2e-4, .parameters = fsdp::under("generator")});
//   fsdp::AdamW discriminator(engine, {.lr = 1e-4, .parameters = fsdp::under("discriminator")});
//
// [Note: optimizer in backward] With Options::optimizer_in_backward the training loop stays the
// same, without clipping:
//
//   fsdp::Engine engine(model, mesh, {.optimizer_in_backward = true});
//   fsdp::AdamW optimizer(engine, {.lr = 3e-4, .skip_nonfinite = false});
//   loss.backward();      // updates each unit when its gradients are reduced
//   optimizer.step();     // ends the step, and updates nothing
//   optimizer.zero_grad();
//
// The results have the same bits as those of an update in step(). A backward updates all units that
// it reaches. It uses the rates and settings that are set when it begins, so a value that is set
// between backward and step applies from the next backward on. If a forward calls a unit several
// times, the unit is updated at the end of the backward and keeps its main gradients until then.
// With cpu_offload the backward waits for each unit's gradients and updates the unit on the host.
//
// A unit's gradients no longer exist when those of the next unit are reduced. So everything that
// needs the gradients of the whole model, or of several backwards, throws:
// - Constructors of optimizers: InvalidArgument for Lamb and Lars, and if skip_nonfinite is true.
//   StateError if another optimizer trains parameters of the same unit.
// - The constructor of LossScaler, clip_grad_norm, measure_gradients, and GradSync: StateError.
//   There is no clipping by the norm of a unit either.
// - backward(): StateError, before any update, if the engine has no optimizer, if the updates of an
//   earlier backward were not ended by step(), inside a forward, and while an AveragedWeights or a
//   Gathered exists. StateError if a hook, or a recomputed function of an earlier forward, uses a
//   unit that this backward has already updated.
// - `.grad` of Engine::parameters(): an access throws between backward and zero_grad, if a caller
//   holds the parameters.
// If a backward throws after it has updated units, the weights are partly new. Every backward and
// step then throws StateError until zero_grad is called. Load a checkpoint before, or accept the
// partly updated weights.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/lr_schedule.h>

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

// A predicate on the name and shape of a parameter. The values of a parameter are not available to
// the predicate: `local` is undefined and `begin` is 0.
using ParameterMatch = std::function<bool(const ShardedParameter&)>;

// Returns a predicate that accepts the parameters of a module and of the modules inside it.
// under("generator") accepts "generator.up.weight" but not "generator2.weight". An empty name
// accepts all parameters.
ParameterMatch under(std::string module);

// Returns true for biases and normalisation weights (tensors of at most one dimension). Such
// parameters are usually exempt from weight decay.
bool is_bias_or_norm(const ShardedParameter& parameter);

// Settings for the parameters that `match` accepts. If several groups accept a parameter, the
// parameter belongs to the first of these groups.
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
  ParameterMatch parameters{};  // parameters to train; unset: all of the engine's
  std::vector<ParameterGroup> groups{};
  // true: all ranks skip the whole step if any rank has a non-finite gradient.
  bool skip_nonfinite = true;
};

// The names are those of AdamW, the defaults also those of bitsandbytes' AdamW8bit.
struct AdamW8bitOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  ParameterMatch parameters{};  // as in AdamWOptions
  std::vector<ParameterGroup> groups{};
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

// The names and defaults are those of torch.optim.RAdam.
struct RAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled_weight_decay = false;  // false: the decay is added to the gradient, as in SGD
  ParameterMatch parameters{};          // as in AdamWOptions
  std::vector<ParameterGroup> groups{};
  bool skip_nonfinite = true;
};

// The names and defaults are those of lion-pytorch. Lion usually needs a learning rate that is 3 to
// 10 times lower than AdamW's, and a weight decay that is higher by the same factor.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;    // decoupled
  ParameterMatch parameters{};  // as in AdamWOptions
  std::vector<ParameterGroup> groups{};
  bool skip_nonfinite = true;
};

// The names are those of timm's Lamb. LAMB multiplies the update of each parameter by its trust
// ratio: the norm of the parameter divided by the norm of the update, or 1 if a norm is 0.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  // false: parameters without weight decay have a trust ratio of 1, as timm and apex do by default.
  bool always_adapt = true;
  ParameterMatch parameters{};  // as in AdamWOptions
  std::vector<ParameterGroup> groups{};
  bool skip_nonfinite = true;
};

// The names are those of torch::optim::SGD and of pytorch-optimizer's LARS. LARS multiplies the
// gradient g of each parameter p, including the weight decay, by its trust ratio:
// trust_coefficient · |p| / (|g| + weight_decay · |p| + eps), or 1 if a norm is 0.
struct LarsOptions {
  double lr = 1e-3;
  double momentum = 0.9;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  double trust_coefficient = 1e-3;
  double eps = 1e-8;
  bool always_adapt = true;     // as in LambOptions
  ParameterMatch parameters{};  // as in AdamWOptions
  std::vector<ParameterGroup> groups{};
  bool skip_nonfinite = true;
};

// The report of a step. Reading the report waits for the device, like reading a GradientReport.
struct StepReport {
  GradientReport gradients;  // empty if the step does not clip and skip_nonfinite is false
  bool skips_nonfinite = true;
  // Returns true if a gradient was not finite. Parameters and optimizer state are then unchanged. A
  // backward through a graph that was built before the step (retain_graph) throws, even if the step
  // was skipped.
  bool skipped() const { return skips_nonfinite && !gradients.finite(); }
};

// A group of parameters that share a learning rate and a weight decay. A value that is set applies
// from the next step on.
// Requires: all ranks set the same values. If they do not, the collective after the optimizer's
//   step throws and names both values.
class OptimizerParamGroup {
 public:
  OptimizerParamGroup(std::string name, double lr_scale, double weight_decay,
                      const double* optimizer_lr);

  const std::string& name() const { return name_; }  // "default": parameters in no other group
  // Returns the optimizer's lr() times lr_scale, or the group's own rate after set_lr. Schedulers
  // change a group's own rate by the same formula as the optimizer's rate, with the current and the
  // initial rate of the group.
  double lr() const { return own_lr_ ? *own_lr_ : *optimizer_lr_ * lr_scale_; }
  // Errors: set_lr and set_weight_decay throw InvalidArgument if the value is negative or not
  //   finite.
  void set_lr(double lr);
  double weight_decay() const { return set_decay_.value_or(weight_decay_); }
  void set_weight_decay(double weight_decay);

 private:
  friend class Optimizer;  // also for Optimizer::State
  std::string name_;
  double lr_scale_;
  double weight_decay_;  // from the options
  const double* optimizer_lr_;
  std::optional<double> own_lr_;
  std::optional<double> set_decay_;
  double initial_lr_ = 0;  // lr() when the optimizer's first scheduler was made
};

// The base of all optimizers. An engine may have several optimizers with disjoint parameters. At
// the first step, a warning (MeshOptions::on_event) names trainable parameters that have no
// optimizer.
// Requires: the engine exists; after its destruction the functions throw. All functions are
//   collective and must be called between steps, except lr, set_lr, momentum, set_momentum,
//   param_groups and steps.
// Effects: the functions issue work and do not wait for it. The device computes the clip
//   coefficient, and decides if a step is skipped.
// Errors of constructors: InvalidArgument if an option is invalid, if `parameters` or a group
//   matches nothing, or if two groups have the same name. StateError if another optimizer of the
//   engine trains one of the parameters.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Measures the total norm (norm_type 1, 2 or infinity) of the gradients of the optimizer's
  // parameters before clipping. If optimizer state is sharded, this needs one all_reduce. The
  // gradients are scaled later, by the next step() while it reads them, so clipping needs no pass
  // of its own over memory.
  // Errors: InvalidArgument if max_norm is negative or NaN, or if norm_type is not 1, 2 or
  //   infinity.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);
  // Updates the parameters and the optimizer state, and returns the step's report. Gradients are
  // kept until zero_grad. With Options::optimizer_in_backward it ends the step whose updates the
  // backward has made.
  // Errors: StateError if some gradients are not reduced yet (GradSync), or if a backward added
  //   gradients after clip_grad_norm.
  StepReport step();
  // Frees the gradients of the optimizer's parameters.
  void zero_grad();

  double lr() const;
  void set_lr(double lr);
  // Returns the default group, followed by the groups of the options in their order.
  //   for (auto& group : optimizer.param_groups()) group.set_lr(0.1);
  std::span<OptimizerParamGroup> param_groups();
  // Return and set SGD's momentum or another optimizer's beta1 (OneCycleLR changes this value). A
  // new value applies from the next step on. A bias correction then uses the new beta1 for all
  // steps, as if it had been set from the start.
  // Errors: set_momentum throws InvalidArgument if the value is not between 0 and 1. It also throws
  //   for an SGD that was made without momentum, because that SGD has no momentum buffer.
  double momentum() const;
  void set_momentum(double momentum);
  int64_t steps() const;  // number of applied steps; waits for them

  struct State;

 protected:
  friend struct OptimizerAccess;  // internal: src/optim/optimizer_state.h
  explicit Optimizer(std::unique_ptr<State> state);
  // Throws InvalidArgument if amsgrad is set in LibTorch's options, because no optimizer of fsdp
  // supports it.
  static void require_no_amsgrad(bool amsgrad);
  std::unique_ptr<State> state_;
};

// Options of an optimizer of torch::optim. A program that passes such options must include their
// header from LibTorch.
template <class Options>
concept TorchOptions = std::derived_from<Options, torch::optim::OptimizerOptions>;

class AdamW : public Optimizer {
 public:
  AdamW(Engine& engine, AdamWOptions options);
  // Errors: InvalidArgument if amsgrad is set.
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

// AdamW with moments in 8 bits, as bitsandbytes' AdamW8bit: a byte per element and moment, and one
// float32 per block of kBlockNumel elements (kernels/update_blocks.h). Blocks are counted from the
// first element of a parameter in memory order. As in bitsandbytes, parameters with fewer than
// kMinNumel elements (biases, norms) keep float32 moments, because they need little memory and are
// sensitive to errors.
// Requires: the engine has Options::shard_granule = kBlockNumel or a multiple, also on one rank.
// Errors of the constructor: also InvalidArgument if the engine has another shard_granule.
class AdamW8bit : public Optimizer {
 public:
  static constexpr int64_t kBlockNumel = 256;
  static constexpr int64_t kMinNumel = 4096;

  AdamW8bit(Engine& engine, AdamW8bitOptions options);
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

// Adam with a rectified variance: a warm-up of the adaptive step that needs no schedule.
class RAdam : public Optimizer {
 public:
  RAdam(Engine& engine, RAdamOptions options);
};

// Steps along the sign of a momentum. It keeps one moment per element.
class Lion : public Optimizer {
 public:
  Lion(Engine& engine, LionOptions options);
};

// Adam for large batches, with trust ratios. A step sends one more all_reduce, which has 16 bytes
// for each parameter, and for each border of ranks inside a parameter up to 32 bytes per doubling
// of the parameter's size. The norms have the same bits for every number of ranks
// (kernels/trust_ratios.h).
class Lamb : public Optimizer {
 public:
  Lamb(Engine& engine, LambOptions options);
};

// SGD for large batches, with trust ratios. It sends the same all_reduce as Lamb.
class Lars : public Optimizer {
 public:
  Lars(Engine& engine, LarsOptions options);
};

}  // namespace fsdp
