// State that optimizers share: groups of parameters, runs over the flat shards, clip and skip.
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

struct Optimizer::State {
  struct Settings {
    double lr;
    double weight_decay;
    ParameterMatch parameters;
    std::vector<ParameterGroup> groups;
    bool skip_nonfinite;
    int moments;
  };
  // The settings that options of all optimizers have.
  template <class Options>
  static Settings settings_of(const Options& options, int moments) {
    return {options.lr,     options.weight_decay,   options.parameters,
            options.groups, options.skip_nonfinite, moments};
  }
  // `name`, for checkpoints and errors: "AdamW". Errors: as Optimizer's.
  State(Engine& engine, std::string name, Settings settings);
  virtual ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // What set_momentum changes; null: there is none.
  virtual double* momentum() { return nullptr; }
  // For checkpoints: what its moments are called, LibTorch's words; and its options but lr by name.
  virtual std::vector<std::string_view> moment_names() const = 0;
  virtual std::map<std::string, double> option_values() const = 0;
  // Of the corrections that counters hold.
  virtual kernels::StepBetas betas() const { return {}; }
  // With the options of now, and whether kernels look at counters for it.
  virtual kernels::UpdateRule rule() const = 0;
  virtual bool reads_steps() const { return true; }

  GradientReport clip_grad_norm(double max_norm, double norm_type);
  StepReport step();
  void zero_grad();
  int64_t applied() const { return segments_.read(*segments_.applied()); }

  // ---- for schedulers ----

  // Notes the rates that schedulers begin with, once, and returns the optimizer's.
  double begin_schedules();
  // The same, for a scheduler that begins with a rate of its own.
  void begin_schedules_at(double initial);
  // Changes the optimizer's rate, which began at `initial`, and those of groups that have one of
  // their own. All of them, or none if one throws.
  void change_rates(double initial, const std::function<double(double lr, double initial)>& next);

  // ---- for checkpoints; between passes ----

  // What was unfrozen since the last step has state from here on. Errors: as EnginePass::unfreeze.
  void follow_trained();
  OptimizedSegments& segments() { return segments_; }
  const OptimizedSegments& segments() const { return segments_; }
  // What was set of groups, by "NAME.lr", "NAME.initial_lr" and "NAME.weight_decay".
  std::map<std::string, double> group_values() const;
  // Sets them, and takes back what was set and is not among them. Requires: they are of groups
  // that it has.
  void set_group_values(const std::map<std::string, double>& values);

  const std::shared_ptr<EngineParts> engine_held;  // a shell, once the engine is gone
  EngineParts& engine;
  const std::string name;
  double lr;
  bool momentum_is_set = false;  // by set_momentum: ranks compare it from then on

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
  const TrainingPlace place_;  // before memory is asked for
  GroupedParameters grouped_;
  const bool skip_nonfinite_;
  std::optional<double> initial_lr_;  // from the first scheduler on
  OptimizedSegments segments_;
  int64_t issued_ = 0;
  std::optional<GradientMeasure::Measured> clipped_;  // by clip_grad_norm, for the next step
  int64_t clipped_additions_ = 0;                     // additions() at that time
};

// The way into an Optimizer, for its schedulers and checkpoints.
struct OptimizerAccess {
  static Optimizer::State& state(Optimizer& optimizer) { return *optimizer.state_; }
};
inline Optimizer::State& state_of(Optimizer& optimizer) {
  return OptimizerAccess::state(optimizer);
}

}  // namespace fsdp
