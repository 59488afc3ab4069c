// Optimizers on flat shards. Each updates every segment in one pass over memory; state is sharded
// as the parameters are. Equal results to torch::optim on Engine::parameters().
#pragma once

#include <fsdp/engine.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

namespace fsdp {

// Deviations for the parameters that `match` picks; the first group that matches counts. `match`
// sees names and shapes; `local` is undefined there.
struct ParameterGroup {
  std::function<bool(const ShardedParameter&)> match;
  double weight_decay = 0.0;
  double lr_scale = 1.0;
};

// True for biases and normalisation weights (parameters of at most one dimension): the usual
// exemption from weight decay.
bool is_bias_or_norm(const ShardedParameter& parameter);

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool bias_correction = true;
  std::vector<ParameterGroup> groups;
  // Skip the whole step, on all ranks alike, when any rank has a non-finite gradient.
  bool skip_nonfinite = true;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  std::vector<ParameterGroup> groups;
  bool skip_nonfinite = true;
};

// Of a step that was issued; reading it waits, as GradientReport says.
struct StepReport {
  GradientReport gradients;  // of none, if nothing was measured: no clipping, and no skipping
  bool skips_nonfinite = true;
  // The gradients are not finite; parameters and state are as they were. A graph that was kept is
  // older than the step all the same: its next backward throws.
  bool skipped() const { return skips_nonfinite && !gradients.finite(); }
};

// What AdamW and SGD share. An engine has one at a time: StateError for a second, naming the first.
// Requires: all calls but those about lr, momentum and steps are collective, between steps; the
// engine lives, or they throw. They issue work and do not wait for
// it: whether a step is skipped, and by how much it is clipped, is decided where the gradients are.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Total norm of all gradients before clipping (norm_type 1, 2 or infinity); one all_reduce where
  // optimizer state is cut over the ranks. The scaling itself is folded into the next step(), so
  // gradients are read once.
  // Errors: InvalidArgument if max_norm is negative or NaN, or norm_type is another.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);
  StepReport step();
  void zero_grad();

  double lr() const;
  void set_lr(double lr);
  // SGD's momentum, AdamW's beta1: what OneCycleLR calls momentum. A new one counts from the next
  // step on, AdamW's bias correction included, as if all steps had been taken with it.
  // Errors: set_momentum: InvalidArgument for a value that is not between 0 and 1, or of an SGD
  //   that was made without momentum and has no memory for it.
  double momentum() const;
  void set_momentum(double momentum);
  int64_t steps() const;  // that were applied; waits for them

  struct State;  // for the optimizers, their schedulers, and checkpoints
  State& state() { return *state_; }

 protected:
  explicit Optimizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class AdamW : public Optimizer {
 public:
  AdamW(Engine& engine, AdamWOptions options);
};

class SGD : public Optimizer {
 public:
  SGD(Engine& engine, SgdOptions options);
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
