// What AdamW and SGD share: runs of equal settings over the flat shards, state buffers, clip and
// skip.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine_state.h"
#include "fsdp/optim.h"
#include "kernels/count_steps.h"
#include "runtime/buffer.h"

namespace fsdp {

// Consecutive elements of a segment with one learning rate and decay. Gaps belong to the run before
// them: they are zero and stay zero.
struct OptimizerRun {
  int64_t offset = 0;
  int64_t numel = 0;
  double lr_scale = 1.0;
  double weight_decay = 0.0;
};

// The optimizer's side of one trainable segment.
struct OptimizedSegment {
  int unit = 0;
  int segment = 0;  // of the unit's layout
  std::vector<OptimizerRun> runs;
  std::vector<Buffer> moments;         // fp32, as long as the segment
  kernels::StepCount* step = nullptr;  // in device memory: updates that this segment has seen
};

// One run ready for a kernel.
struct OptimizerUpdate {
  const OptimizedSegment& state;
  const MainSegment& segment;
  const OptimizerRun& run;
  double lr;
};

struct Optimizer::State {
  State(Engine& engine, double lr, double weight_decay, std::vector<ParameterGroup> groups,
        bool skip_nonfinite, int moments);
  virtual ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // What set_momentum changes; null: there is none.
  virtual double* momentum() { return nullptr; }
  // Of the corrections that counters hold.
  virtual kernels::StepBetas betas() const { return {}; }
  // `scale` and `found_inf` as kernels take them.
  virtual void update(Stream& stream, const std::vector<OptimizerUpdate>& updates,
                      const float* scale, const float* found_inf) = 0;

  GradientReport clip_grad_norm(double max_norm, double norm_type);
  StepReport step();
  void forget_measured();
  int64_t applied() const;

  const std::shared_ptr<EngineState> engine_held;  // a shell, once the engine is gone
  EngineState& engine;
  double lr;
  std::optional<double> initial_lr;  // of the schedulers, from the first one on
  bool momentum_is_set = false;      // by set_momentum: ranks compare it from then on

 private:
  void check_gradients_complete() const;
  void note_step();
  StepReport issue_step();
  void add_segments();
  kernels::StepCount* add_counters(size_t count);
  void make_runs();

  double weight_decay_;
  std::vector<ParameterGroup> groups_;
  bool skip_nonfinite_;
  int moments_;
  std::vector<OptimizedSegment> segments_;
  std::vector<char> trained_;     // requires_grad of every parameter when the runs were made
  std::vector<Buffer> counters_;  // what `step` and applied_ point to
  kernels::StepCount* applied_ = nullptr;  // in device memory: steps that were not skipped
  int64_t issued_ = 0;
  std::optional<GradientMeasure::Measured> clipped_;  // by clip_grad_norm, for the next step
  int64_t clipped_passes_ = 0;                        // the engine's count of passes at that time
  int64_t state_bytes_ = 0;
};

}  // namespace fsdp
