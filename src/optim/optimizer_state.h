// Optimizer::State: the state that all optimizers have, with groups of parameters, runs over the
// flat shards, clip and skip.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_parts.h"
#include "fsdp/optim.h"
#include "kernels/update.h"
#include "optim/optimized_segments.h"
#include "optim/parameter_choice.h"

namespace fsdp {

// The base of each optimizer's private side. A subclass adds its options and its update rule.
struct Optimizer::State {
  struct Settings {
    double lr;
    double weight_decay;
    ParameterMatch parameters;
    std::vector<ParameterGroup> groups;
    bool skip_nonfinite;
    int moments;
  };
  // Returns the settings that the options of every optimizer have.
  template <class Options>
  static Settings settings_of(const Options& options, int moments) {
    return {options.lr,     options.weight_decay,   options.parameters,
            options.groups, options.skip_nonfinite, moments};
  }
  // `name` is for checkpoints and errors: "AdamW". Errors: as Optimizer's.
  State(Engine& engine, std::string name, Settings settings);
  virtual ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Returns the option that set_momentum changes, null if there is none.
  virtual double* momentum() { return nullptr; }
  // For checkpoints: LibTorch's names of its moments, and the values of its options except lr, by
  // name.
  virtual std::vector<std::string_view> moment_names() const = 0;
  virtual std::map<std::string, double> option_values() const = 0;
  // Returns the betas of the corrections that counters hold.
  virtual kernels::StepBetas betas() const { return {}; }
  // Return the rule with the present options, and whether its kernels read counters.
  virtual kernels::UpdateRule rule() const = 0;
  virtual bool reads_steps() const { return true; }

  GradientReport clip_grad_norm(double max_norm, double norm_type);
  StepReport step();
  void zero_grad();
  int64_t applied() const { return segments_.read(*segments_.applied()); }

  // ---- for schedulers ----

  // Notes the rates with which schedulers begin, at the first call, and returns the optimizer's.
  double begin_schedules();
  // Does the same for a scheduler that begins with a rate of its own.
  void begin_schedules_at(double initial);
  // Changes the optimizer's rate, which began at `initial`, and those of groups with a rate of
  // their own. Changes all of them, or none if one throws.
  void change_rates(double initial, const std::function<double(double lr, double initial)>& next);

  // ---- for checkpoints; between passes ----

  // Creates state for parameters that were unfrozen since the last step.
  // Errors: as EnginePass::unfreeze.
  void follow_trained();
  OptimizedSegments& segments() { return segments_; }
  const OptimizedSegments& segments() const { return segments_; }
  // Returns the settings that were set on groups, by "NAME.lr", "NAME.initial_lr" and
  // "NAME.weight_decay".
  std::map<std::string, double> group_values() const;
  // Sets them, and resets settings that are not among them.
  // Requires: they are of groups that it has.
  void set_group_values(const std::map<std::string, double>& values);

  const std::shared_ptr<EngineParts> engine_held;  // unusable once the engine is gone
  EngineParts& engine;
  const std::string name;
  double lr;
  bool momentum_is_set = false;  // ranks compare the momentum from then on

  std::span<OptimizerParamGroup> param_groups() { return grouped_.groups; }
  std::span<const OptimizerParamGroup> param_groups() const { return grouped_.groups; }

 protected:
  const double weight_decay;

 private:
  void check_gradients_complete() const;
  int64_t additions() const;
  void warn_of_untrained() const;
  void note(std::string what) const;
  void note_step();
  StepReport issue_step();
  void issue_updates(const kernels::UpdateScalars& scalars);
  kernels::UpdateSegment update_of(const OptimizedSegment& optimized, const OptimizerRun& run,
                                   const MainSegment& segment) const;

  const ChosenParameters chosen_;
  const std::string described_;
  const TrainingPlace place_;  // above segments_, which allocates
  GroupedParameters grouped_;
  const bool skip_nonfinite_;
  std::optional<double> initial_lr_;  // set by the first scheduler
  OptimizedSegments segments_;
  int64_t issued_ = 0;
  std::optional<GradientMeasure::Measured> clipped_;  // by clip_grad_norm for the next step
  int64_t clipped_additions_ = 0;                     // additions() at that time
};

// Access to an Optimizer's state for its schedulers and checkpoints.
struct OptimizerAccess {
  static Optimizer::State& state(Optimizer& optimizer) { return *optimizer.state_; }
};
inline Optimizer::State& state_of(Optimizer& optimizer) {
  return OptimizerAccess::state(optimizer);
}

}  // namespace fsdp
