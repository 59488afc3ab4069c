// Optimizers on flat shards. Each updates every segment in one pass over memory; state is sharded
// as the parameters are. Equal results to torch::optim on Engine::parameters().
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

// Chooses parameters by their names and shapes: `local` is undefined and `begin` 0 in what it sees.
using ParameterMatch = std::function<bool(const ShardedParameter&)>;

// Matches what a module and the modules inside it own: under("generator") matches
// "generator.up.weight", and not "generator2.weight". An empty name matches every parameter.
ParameterMatch under(std::string module);

// Matches biases and normalisation weights (parameters of at most one dimension): the usual
// exemption from weight decay.
bool is_bias_or_norm(const ShardedParameter& parameter);

// Deviations for the parameters that `match` picks; the first group that matches counts.
struct ParameterGroup {
  ParameterMatch match;
  double weight_decay = 0.0;
  double lr_scale = 1.0;
  std::string name{};  // another one for each group; empty: "group 1" for the first one, and so on
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool bias_correction = true;
  ParameterMatch parameters{};  // that it trains; empty: all of the engine's
  std::vector<ParameterGroup> groups{};
  // Skip the whole step, on all ranks alike, when any rank has a non-finite gradient.
  bool skip_nonfinite = true;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  ParameterMatch parameters{};  // as AdamWOptions'
  std::vector<ParameterGroup> groups{};
  bool skip_nonfinite = true;
};

// A step that was issued. Reading it waits, as GradientReport says.
struct StepReport {
  GradientReport gradients;  // of none, if nothing was measured: no clipping, and no skipping
  bool skips_nonfinite = true;
  // The gradients are not finite; parameters and state are as they were. A graph that was kept is
  // older than the step all the same: its next backward throws.
  bool skipped() const { return skips_nonfinite && !gradients.finite(); }
};

// Parameters of an optimizer that have a learning rate and a weight decay in common. What is set
// holds from the next step on. Requires: all ranks set the same; a difference is an error that
// names both, with the collective after the optimizer's step.
class OptimizerParamGroup {
 public:
  OptimizerParamGroup(std::string name, double lr_scale, double weight_decay,
                      const double* optimizer_lr);

  const std::string& name() const { return name_; }  // "default" for what no ParameterGroup matches
  // The optimizer's lr() times lr_scale. From the first set_lr on the group has a rate of its own,
  // which schedulers change as they change the optimizer's, from where it is.
  double lr() const { return own_lr_ ? *own_lr_ : *optimizer_lr_ * lr_scale_; }
  // Errors: InvalidArgument for a rate or decay that is negative or not finite.
  void set_lr(double lr);
  double weight_decay() const { return set_decay_.value_or(weight_decay_); }
  void set_weight_decay(double weight_decay);

 private:
  friend class Optimizer;  // and its State
  std::string name_;
  double lr_scale_;
  double weight_decay_;  // of the options
  const double* optimizer_lr_;
  std::optional<double> own_lr_;
  std::optional<double> set_decay_;
  double initial_lr_ = 0;  // lr() when the optimizer's first scheduler was made
};

// The base of AdamW and SGD. An engine may have several, each of its own parameters. A trainable
// parameter that is in none of them is warned of at the first step (MeshOptions::on_event).
// Requires: all calls but those about lr, momentum, groups and steps are collective, between steps;
// the engine lives, or they throw. They issue work and do not wait for it: whether a step is
// skipped, and by how much it is clipped, is decided where the gradients are.
// Errors, of constructors: InvalidArgument for options that no such optimizer has, for `parameters`
//   and groups that match nothing, and for groups of one name; StateError for a parameter that
//   another optimizer of the engine trains.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Total norm of the gradients of its parameters before clipping (norm_type 1, 2 or infinity); one
  // all_reduce where optimizer state is cut over the ranks. The scaling itself is folded into the
  // next step(), so gradients are read once.
  // Errors: InvalidArgument if max_norm is negative or NaN, or norm_type is another.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);
  StepReport step();
  // Clears the gradients of its parameters.
  void zero_grad();

  double lr() const;
  void set_lr(double lr);
  // The default group, then those of the options in their order.
  //   for (auto& group : optimizer.param_groups()) group.set_lr(0.1);
  std::span<OptimizerParamGroup> param_groups();
  // SGD's momentum, AdamW's beta1: what OneCycleLR calls momentum. A new one counts from the next
  // step on, AdamW's bias correction included, as if all steps had been taken with it.
  // Errors: set_momentum: InvalidArgument for a value that is not between 0 and 1, or of an SGD
  //   that was made without momentum and has no memory for it.
  double momentum() const;
  void set_momentum(double momentum);
  int64_t steps() const;  // that were applied; waits for them

  struct State;

 protected:
  friend struct OptimizerAccess;  // the library's own: src/optim/optimizer_state.h
  explicit Optimizer(std::unique_ptr<State> state);
  // Errors: InvalidArgument if LibTorch's options ask for it: no optimizer here has it.
  static void require_no_amsgrad(bool amsgrad);
  std::unique_ptr<State> state_;
};

// Options of torch::optim; a program that passes them includes their header.
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

// Learning-rate factor by step: linear warm-up from 0 over `warmup_steps`, then to 0 at
// `total_steps` linearly or along half a cosine; constant after warm-up for kConstant. The first
// step() (step 0) uses factor(0), as Hugging Face's schedulers do.
struct LrSchedule {
  enum class Shape : uint8_t { kConstant, kLinear, kCosine };
  Shape shape = Shape::kLinear;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  double factor(int64_t step) const;
};

}  // namespace fsdp
