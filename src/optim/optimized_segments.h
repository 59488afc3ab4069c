// OptimizedSegments: an optimizer's side of the flat shards, with moments, step counters and
// runs of equal settings.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/engine_parts.h"
#include "kernels/count_steps.h"
#include "runtime/buffer.h"

namespace fsdp {

// Consecutive elements of a segment with one group and one count of updates. A gap belongs to the
// run before it: it is zero and stays zero.
struct OptimizerRun {
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t moment_offset = 0;
  int group = 0;
  kernels::StepCount* step = nullptr;  // one of the segment's
};

// A run of a slice with moments: those of elements [offset, offset + numel) begin at
// `moment_offset`.
struct MomentPiece {
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t moment_offset = 0;
};

// The optimizer's side of one trainable segment.
struct OptimizedSegment {
  int unit = 0;
  int segment = 0;  // of the unit's layout
  int first = 0;    // the first of its parameters that the optimizer trains
  std::vector<OptimizerRun> runs;
  // The whole slice, or its pieces if other parameters of the segment belong to another optimizer.
  std::vector<MomentPiece> pieces;
  std::vector<Buffer> moments;  // fp32, as long as the pieces
  // In the memory of the main state: the updates that parameters of this segment have had. One
  // counter for all of them, until a checkpoint is loaded whose parameters had other segments.
  std::vector<kernels::StepCount*> counters;
  std::vector<kernels::StepCount*> step_of;  // by the segment's parameters; each one of counters

  // Returns the elements of each moment, with the padding between pieces.
  int64_t moment_numel() const;
  // Returns the offset of the moments of a slice's element. Requires: the element is in a piece.
  int64_t moment_at(int64_t offset) const;
};

// The state of one parameter, and its place in the engine.
struct OptimizedParameter {
  int unit = 0;
  int parameter = 0;   // of the unit
  size_t segment = 0;  // index into segments()
  int64_t steps = 0;   // updates it has had
};

// The segments that one optimizer trains. Not thread-safe: the backward scheduler's mutex covers
// it.
class OptimizedSegments {
 public:
  // `chosen`: the parameters that the optimizer trains; `group_of`: the group of each, by unit and
  // parameter; `moments`: the number that it keeps of each element. Those passed outlive it.
  struct Parts {
    EngineParts& engine;
    const ChosenParameters& chosen;
    const std::vector<std::vector<int>>& group_of;
    int moments;
  };
  explicit OptimizedSegments(const Parts& parts);
  // Returns the bytes of the moments to the engine's count.
  ~OptimizedSegments();
  OptimizedSegments(const OptimizedSegments&) = delete;
  OptimizedSegments& operator=(const OptimizedSegments&) = delete;

  const std::vector<OptimizedSegment>& all() const { return segments_; }
  // Follows parameters that were frozen or unfrozen. A frozen one has no run; its shard and moments
  // stay as they are. Moments of an unfrozen one that was never trained begin at zero.
  void follow_trained();

  // Returns the counter of steps that were not skipped, in the memory of the main state.
  kernels::StepCount* applied() const { return applied_; }
  // Returns a counter's steps. Waits for issued work.
  int64_t read(const kernels::StepCount& counter) const;
  // Returns the parameters that are trained, or were before they were frozen, in the order of
  // units. Waits for issued work.
  std::vector<OptimizedParameter> parameters() const;
  // Sets the counters as if `applied` steps had been applied. `parameters`: those of parameters(),
  // with new steps.
  void set_counts(int64_t applied, const std::vector<OptimizedParameter>& parameters);

  // Returns a moment of a segment in the layout of the slice, with zeros for elements that the
  // optimizer does not train. If the moment is in pieces, the result is `room`, and the copy is
  // issued to the main state's stream.
  float* laid_out(const OptimizedSegment& segment, size_t moment, Buffer& room) const;

 private:
  std::vector<char> trained_now() const;
  void add_segments();
  void add_segment(const EngineUnit& unit, const MainSegment& segment,
                   std::vector<OptimizedSegment>& added) const;
  std::vector<MomentPiece> pieces_of(const EngineUnit& unit, const MainSegment& segment) const;
  kernels::StepCount* add_counters(size_t count);
  void write_counters(const std::vector<int64_t>& counts);
  const SegmentLayout& layout_of(const OptimizedSegment& optimized) const;
  void make_runs();
  void make_runs(OptimizedSegment& optimized) const;

  const Parts of_;
  std::vector<OptimizedSegment> segments_;
  std::vector<char> trained_;     // trained_now() when the runs were made
  std::vector<char> known_;       // by parameter: was trained once
  std::vector<Buffer> counters_;  // memory of all counters
  kernels::StepCount* applied_ = nullptr;
  int64_t state_bytes_ = 0;
};

}  // namespace fsdp
