// Optimizer::State: the state that all optimizers share. It consists of the groups of parameters,
// the segments of the flat shards, and the state for clipping and for skipped steps.
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
#include "engine/unit_updates.h"
#include "fsdp/optim.h"
#include "kernels/update.h"
#include "optim/optimized_segments.h"
#include "optim/parameter_choice.h"
#include "optim/trust_ratios.h"

namespace fsdp {

// The kernels' arguments for the update of some units.
struct StepUpdates {
  std::vector<kernels::UpdateSegment> segments{};
  std::vector<kernels::BlockSegment> blocks{};  // those with quantized moments
  std::vector<TrustRatios::Adapted> adapted{};  // of an update with trust ratios
  std::vector<kernels::StepCount*> counters;
  std::vector<int> units{};
};

// The base of each optimizer's private state. A subclass adds its options and its update rule.
struct Optimizer::State : UnitUpdater {
  struct Settings {
    double lr;
    double weight_decay;
    ParameterMatch parameters;
    std::vector<ParameterGroup> groups;
    bool skip_nonfinite;
    int moments;
    bool adapts;     // true: the update has trust ratios
    bool quantizes;  // true: the moments of large parameters are quantized
  };
  // Returns the settings that are common to the options of all optimizers.
  template <class Options>
  static Settings settings_of(const Options& options, int moments, bool adapts = false,
                              bool quantizes = false) {
    return {options.lr,
            options.weight_decay,
            options.parameters,
            options.groups,
            options.skip_nonfinite,
            moments,
            adapts,
            quantizes};
  }
  // `name` is the optimizer's name in checkpoints and errors: "AdamW". Errors: those of Optimizer's
  // constructors.
  State(Engine& engine, std::string name, Settings settings);
  ~State() override;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Returns the option that set_momentum changes; null if there is none.
  virtual double* momentum() { return nullptr; }
  // Return the moments' names in LibTorch, and the option values by option name, without lr.
  // Checkpoints store both.
  virtual std::vector<std::string_view> moment_names() const = 0;
  virtual std::map<std::string, double> option_values() const = 0;
  // Returns the betas for the bias corrections that the step counters store.
  virtual kernels::StepBetas betas() const { return {}; }
  // Return the update rule with the current options, and true if the kernels of this rule read step
  // counters. If Settings::quantizes is true, the rule is kernels::AdamW.
  virtual kernels::UpdateRule rule() const = 0;
  virtual bool reads_steps() const { return true; }
  // Returns how trust ratios are computed, if Settings::adapts is true.
  virtual TrustRule trust_rule() const { return {}; }

  GradientReport clip_grad_norm(double max_norm, double norm_type);
  StepReport step();
  void zero_grad();
  int64_t applied() const { return segments_.read(*segments_.applied()); }

  // ---- for schedulers ----

  // Stores, at the first call, the current rates as the initial rates of schedulers. Returns the
  // optimizer's initial rate.
  double begin_schedules();
  // Does the same as begin_schedules() for a scheduler that has its own initial rate. `initial`
  // becomes the optimizer's initial rate, even if an earlier scheduler has set another one.
  void begin_schedules_at(double initial);
  // Changes the optimizer's rate, whose initial value is `initial`, and the rates of groups that
  // have their own rate. If a new rate is invalid, throws and changes no rate.
  void change_rates(double initial, const std::function<double(double lr, double initial)>& next);

  // ---- for checkpoints; between passes ----

  // Creates state for parameters that were unfrozen since the last step.
  // Errors: those of EnginePass::unfreeze.
  void follow_trained();
  const TrainingPlace& place() const { return place_; }
  // Returns true if a backward has added gradients since the last step or zero_grad.
  bool has_new_gradients() const { return additions() != used_additions_; }
  // Returns true if a backward has updated units since the last step.
  bool awaits_step() const { return in_backward_ && in_backward_->awaits_step(); }
  OptimizedSegments& segments() { return segments_; }
  const OptimizedSegments& segments() const { return segments_; }
  // Returns the settings that the program has set on groups, with the keys "NAME.lr",
  // "NAME.initial_lr" and "NAME.weight_decay".
  std::map<std::string, double> group_values() const;
  // Sets the settings in `values`, which has the keys of group_values(), on the groups. Resets
  // settings that `values` does not contain.
  // Requires: the groups of all keys exist.
  void set_group_values(const std::map<std::string, double>& values);

  const std::shared_ptr<EngineParts> engine_held;  // shut down, but not freed, with the engine
  EngineParts& engine;
  const std::string name;
  double lr;
  bool momentum_is_set = false;  // if true, ranks compare the momentum

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
  StepReport end_step();  // of a step whose updates a backward has issued
  void add_updates(int unit, StepUpdates& updates) const;
  void issue(Stream& stream, StepUpdates& updates, const kernels::UpdateScalars& scalars);
  std::unique_ptr<UpdaterPlace> place_in_backward(const Settings& settings);
  void begin_step() override;
  void update_unit(int unit, Stream& stream) override;
  kernels::UpdateSegment update_of(const OptimizedSegment& optimized, const OptimizerRun& run,
                                   const MainSegment& segment) const;

  const ChosenParameters chosen_;
  const std::string described_;
  const TrainingPlace place_;                        // its checks run before segments_ allocates
  const std::unique_ptr<UpdaterPlace> in_backward_;  // null: step() updates
  GroupedParameters grouped_;
  const bool skip_nonfinite_;
  std::optional<double> initial_lr_;  // set by the first scheduler
  OptimizedSegments segments_;
  std::optional<TrustRatios> trust_;  // set if the update has trust ratios
  int64_t issued_ = 0;
  std::optional<GradientMeasure::Measured> clipped_;  // from clip_grad_norm, for the next step
  int64_t clipped_additions_ = 0;                     // additions() at clip_grad_norm
  int64_t used_additions_ = 0;                        // additions() at the last step or zero_grad
};

// Access to an Optimizer's state for its schedulers and checkpoints.
struct OptimizerAccess {
  static Optimizer::State& state(Optimizer& optimizer) { return *optimizer.state_; }
};
inline Optimizer::State& state_of(Optimizer& optimizer) {
  return OptimizerAccess::state(optimizer);
}

}  // namespace fsdp
