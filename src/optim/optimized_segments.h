// An optimizer's side of the flat shards: moments, counters of steps, and runs of equal settings.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/engine_parts.h"
#include "kernels/count_steps.h"
#include "runtime/buffer.h"

namespace fsdp {

// Consecutive elements of a segment with one group and count of updates. Gaps belong to the run
// before them: they are zero and stay zero.
struct OptimizerRun {
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t moment_offset = 0;
  int group = 0;
  kernels::StepCount* step = nullptr;  // one of the segment's
};

// Elements [offset, offset + numel) of a slice have their moments from `moment_offset` on.
struct MomentPiece {
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t moment_offset = 0;
};

// The optimizer's side of one trainable segment.
struct OptimizedSegment {
  int unit = 0;
  int segment = 0;  // of the unit's layout
  int first = 0;    // parameter of the unit that the optimizer trains
  std::vector<OptimizerRun> runs;
  // The whole slice, or pieces of it where other parameters of the segment are not the optimizer's.
  std::vector<MomentPiece> pieces;
  std::vector<Buffer> moments;  // fp32, as long as the pieces
  // In device memory: updates that parameters of this segment have seen. One for all of them, until
  // a checkpoint comes whose parameters had other segments.
  std::vector<kernels::StepCount*> counters;
  std::vector<kernels::StepCount*> step_of;  // by the segment's parameters; each one of counters

  int64_t moment_numel() const;
  // Where the moments of a slice's element are. Requires: it is in a piece.
  int64_t moment_at(int64_t offset) const;
};

// The state of one parameter, and its place in the engine.
struct OptimizedParameter {
  int unit = 0;
  int parameter = 0;   // of the unit
  size_t segment = 0;  // index into segments()
  int64_t steps = 0;   // updates it has seen
};

// Not thread-safe: the engine's mutex covers it.
class OptimizedSegments {
 public:
  // `chosen`: what the optimizer trains; `group_of`: the group of each, by unit and parameter.
  // `moments`: how many it keeps of each element. Those given live as long.
  struct Parts {
    EngineParts& engine;
    const ChosenParameters& chosen;
    const std::vector<std::vector<int>>& group_of;
    int moments;
  };
  explicit OptimizedSegments(const Parts& parts);
  // Gives the bytes of the moments back to the engine's count.
  ~OptimizedSegments();
  OptimizedSegments(const OptimizedSegments&) = delete;
  OptimizedSegments& operator=(const OptimizedSegments&) = delete;

  const std::vector<OptimizedSegment>& all() const { return segments_; }
  // Follows parameters that were frozen or unfrozen: the first have no run, and their shards and
  // moments stay as they are; moments of the others begin at zero.
  void follow_trained();

  // Counts steps that were not skipped; in device memory.
  kernels::StepCount* applied() const { return applied_; }
  int64_t read(const kernels::StepCount& counter) const;
  // Those that are trained, and those that were before they were frozen, in the order of units.
  // Waits for what was issued.
  std::vector<OptimizedParameter> parameters() const;
  // As if so many steps had been applied. `parameters`: those of parameters(), with new steps.
  void set_counts(int64_t applied, const std::vector<OptimizedParameter>& parameters);

  // Returns a moment of a segment laid out as the slice is, with zeros for what is not the
  // optimizer's. It is `room`, issued to the main state's stream, where the moment is in pieces.
  float* laid_out(const OptimizedSegment& segment, size_t moment, Buffer& room) const;

 private:
  std::vector<char> trained_now() const;
  void add_segments();
  void add_segment(const EngineUnit& unit, const MainSegment& segment);
  std::vector<MomentPiece> pieces_of(const EngineUnit& unit, const MainSegment& segment) const;
  kernels::StepCount* add_counters(size_t count);
  void write_counters(const std::vector<int64_t>& counts);
  const SegmentLayout& layout_of(const OptimizedSegment& optimized) const;
  void make_runs();
  void make_runs(OptimizedSegment& optimized) const;

  const Parts of_;
  std::vector<OptimizedSegment> segments_;
  std::vector<char> trained_;     // requires_grad of every parameter when the runs were made
  std::vector<char> known_;       // of every parameter: it was so once
  std::vector<Buffer> counters_;  // what `counters` and applied_ point to
  kernels::StepCount* applied_ = nullptr;
  int64_t state_bytes_ = 0;
};

}  // namespace fsdp
