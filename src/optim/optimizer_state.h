// What AdamW and SGD share: runs of equal settings over the flat shards, state buffers, clip and
// skip.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine_state.h"
#include "fsdp/optim.h"
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
  std::vector<Buffer> moments;  // fp32, as long as the segment
  std::unique_ptr<int64_t> step =
      std::make_unique<int64_t>(0);  // updates that this segment has seen
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

  virtual void update(Stream& stream, const std::vector<OptimizerUpdate>& updates) = 0;

  StepReport step();

  const std::shared_ptr<EngineState> engine_held;  // a shell, once the engine is gone
  EngineState& engine;
  double lr;
  int64_t steps = 0;
  float grad_scale =
      1.0F;  // the clip coefficient of this step; read by the kernels through a pointer
  std::optional<GradientReport> measured;  // by clip_grad_norm, for this step
  int64_t measured_passes = 0;             // Engine's count of passes at that time

 private:
  void check_gradients_complete() const;
  void note_step() const;
  void add_segments();
  void make_runs();

  double weight_decay_;
  std::vector<ParameterGroup> groups_;
  bool skip_nonfinite_;
  int moments_;
  std::vector<OptimizedSegment> segments_;
  std::vector<char> trained_;  // requires_grad of every parameter when the runs were made
  int64_t state_bytes_ = 0;
};

}  // namespace fsdp
