// What AdamW and SGD share: runs of equal settings over the flat shards, state buffers, clip and
// skip.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_parts.h"
#include "fsdp/optim.h"
#include "kernels/count_steps.h"
#include "runtime/buffer.h"

namespace fsdp {

// Consecutive elements of a segment with one learning rate, decay and count of updates. Gaps belong
// to the run before them: they are zero and stay zero.
struct OptimizerRun {
  int64_t offset = 0;
  int64_t numel = 0;
  double lr_scale = 1.0;
  double weight_decay = 0.0;
  kernels::StepCount* step = nullptr;  // one of the segment's
};

// The optimizer's side of one trainable segment.
struct OptimizedSegment {
  int unit = 0;
  int segment = 0;  // of the unit's layout
  std::vector<OptimizerRun> runs;
  std::vector<Buffer> moments;  // fp32, as long as the segment
  // In device memory: updates that parameters of this segment have seen. One for all of them, until
  // a checkpoint comes whose parameters had other segments.
  std::vector<kernels::StepCount*> counters;
  std::vector<kernels::StepCount*> step_of;  // by the segment's parameters; each one of counters
};

// What is kept of one parameter: its place in the engine, and its state.
struct OptimizedParameter {
  int unit = 0;
  int parameter = 0;   // of the unit
  size_t segment = 0;  // index into segments()
  int64_t steps = 0;   // updates it has seen
};

// One run ready for a kernel.
struct OptimizerUpdate {
  const OptimizedSegment& state;
  const MainSegment& segment;
  const OptimizerRun& run;
  double lr;
};

struct Optimizer::State {
  struct Settings {
    double lr;
    double weight_decay;
    std::vector<ParameterGroup> groups;
    bool skip_nonfinite;
    int moments;
  };
  // `name`, for checkpoints and errors: "AdamW". Errors: StateError for an engine that has one.
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
  // `scale` and `found_inf` as kernels take them.
  virtual void update(Stream& stream, const std::vector<OptimizerUpdate>& updates,
                      const float* scale, const float* found_inf) = 0;

  GradientReport clip_grad_norm(double max_norm, double norm_type);
  StepReport step();
  void forget_measured();
  int64_t applied() const;

  // ---- for checkpoints; between passes ----

  // What was unfrozen since the last step has state from here on. Errors: as EnginePass::unfreeze.
  void follow_trained();
  const std::vector<OptimizedSegment>& segments() const { return segments_; }
  // Those that are trained, and those that were before they were frozen, in the order of units.
  // Waits for what was issued.
  std::vector<OptimizedParameter> parameters() const;
  // As if so many steps had been applied. `parameters`: those of parameters(), with new steps.
  void set_counts(int64_t applied, const std::vector<OptimizedParameter>& parameters);

  const std::shared_ptr<EngineParts> engine_held;  // a shell, once the engine is gone
  EngineParts& engine;
  const std::string name;
  double lr;
  std::optional<double> initial_lr;  // of the schedulers, from the first one on
  bool momentum_is_set = false;      // by set_momentum: ranks compare it from then on

 protected:
  const double weight_decay;

 private:
  const TrainingPlace place_;  // before memory is asked for

  void check_gradients_complete() const;
  void note_step();
  StepReport issue_step();
  void add_segments();
  kernels::StepCount* add_counters(size_t count);
  int64_t read(const kernels::StepCount& counter) const;
  const SegmentLayout& layout_of(const OptimizedSegment& optimized) const;
  void make_runs();

  std::vector<ParameterGroup> groups_;
  bool skip_nonfinite_;
  int moments_;
  std::vector<OptimizedSegment> segments_;
  std::vector<char> trained_;     // requires_grad of every parameter when the runs were made
  std::vector<char> known_;       // of every parameter: it was so once
  std::vector<Buffer> counters_;  // what `counters` and applied_ point to
  kernels::StepCount* applied_ = nullptr;  // in device memory: steps that were not skipped
  int64_t issued_ = 0;
  std::optional<GradientMeasure::Measured> clipped_;  // by clip_grad_norm, for the next step
  int64_t clipped_passes_ = 0;                        // the engine's count of passes at that time
  int64_t state_bytes_ = 0;
};

}  // namespace fsdp
