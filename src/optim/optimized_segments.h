// OptimizedSegments: the moments and step counters of an optimizer for the flat shards, and the
// ranges of elements that have equal settings.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/engine_parts.h"
#include "kernels/count_steps.h"
#include "kernels/update_blocks.h"
#include "runtime/buffer.h"

namespace fsdp {

// Consecutive elements of a segment that have the same group and the same count of updates. A
// padding gap belongs to the OptimizerRun before it, because its elements are zero and stay zero.
struct OptimizerRun {
  int64_t offset = 0;
  int64_t numel = 0;
  size_t piece = 0;  // index into the segment's pieces
  int group = 0;
  int parameter = 0;                   // its first parameter
  kernels::StepCount* step = nullptr;  // counts the updates of these elements
};

// A range of a slice that has moments: elements [offset, offset + numel). In the memory of a moment
// the range has either one fp32 value per element, or one code per element and then the absmax of
// each block (kernels/update_blocks.h).
struct MomentPiece {
  int64_t offset = 0;
  int64_t numel = 0;
  int64_t begin = 0;  // of the range's bytes in the memory of a moment
  bool is_quantized = false;

  int64_t absmax_begin() const;  // byte of the first absmax
  int64_t end() const;           // byte after the range
};

// The optimizer's state for one trainable segment.
struct OptimizedSegment {
  int unit = 0;
  int segment = 0;  // index in the unit's layout
  int first = 0;    // first parameter in the segment that the optimizer trains
  std::vector<OptimizerRun> runs;
  // Has one element, the whole slice, if this optimizer trains the whole segment. Otherwise it has
  // one element per range that this optimizer trains.
  std::vector<MomentPiece> pieces;
  std::vector<Buffer> moments;  // each has at least moment_bytes() bytes
  // The counters of updates of this segment's parameters, in the memory of the main state. Normally
  // all parameters share one counter. There are several counters only after a checkpoint was loaded
  // in which these parameters had different numbers of updates.
  std::vector<kernels::StepCount*> counters;
  std::vector<kernels::StepCount*> step_of;  // the counter of each parameter of the segment

  // Returns the bytes of each moment, including the padding between pieces.
  int64_t moment_bytes() const;
  // Returns the index of the piece that has an element. `offset` is the element's index in the
  // slice. Requires: the element is in one of the pieces.
  size_t piece_of(int64_t offset) const;
  // Return the address of an element's state in a moment, by the form of its piece.
  // Requires: as piece_of; a quantized element is the first one of a block.
  float* values_at(size_t moment, int64_t offset) const;
  kernels::QuantizedMoment blocks_at(size_t moment, int64_t offset) const;
};

// The step count of one parameter, and its position in the engine.
struct OptimizedParameter {
  int unit = 0;
  int parameter = 0;   // of the unit
  size_t segment = 0;  // index into segments()
  int64_t steps = 0;   // number of updates of this parameter
};

// The segments that one optimizer trains. Not thread-safe: the backward scheduler's mutex must be
// held.
class OptimizedSegments {
 public:
  // `chosen` are the parameters that the optimizer trains. `group_of` is the group of each
  // parameter, by unit and parameter. `moments` is the number of moments per element. The
  // referenced objects must outlive this object.
  struct Parts {
    EngineParts& engine;
    const ChosenParameters& chosen;
    const std::vector<std::vector<int>>& group_of;
    int moments;
    bool joins_parameters;  // false: each OptimizerRun has only one parameter
    bool quantizes;         // true: the moments of large parameters are quantized (AdamW8bit)
  };
  explicit OptimizedSegments(const Parts& parts);
  // Subtracts the bytes of the moments from the engine's counted memory.
  ~OptimizedSegments();
  OptimizedSegments(const OptimizedSegments&) = delete;
  OptimizedSegments& operator=(const OptimizedSegments&) = delete;

  const std::vector<OptimizedSegment>& all() const { return segments_; }
  // Returns the indices in all() of the segments of a unit.
  const std::vector<size_t>& of_unit(int unit) const { return of_unit_[unit]; }
  // Returns true if the moments of the parameter are quantized.
  bool is_quantized(const ParameterSpec& parameter) const;
  // Updates the state after parameters were frozen or unfrozen. A frozen parameter is in no
  // OptimizerRun; its shard and moments are unchanged. If a parameter is trained for the first
  // time, its moments begin at zero.
  void follow_trained();

  // Returns the counter of the applied (not skipped) steps, in the memory of the main state.
  kernels::StepCount* applied() const { return applied_; }
  // Returns the number of steps in a counter. Waits for issued work.
  int64_t read(const kernels::StepCount& counter) const;
  // Returns the parameters that are trained now or were trained before they were frozen, in the
  // order of units. Waits for issued work.
  std::vector<OptimizedParameter> parameters() const;
  // Sets the counters as if `applied` steps had been applied. `parameters` must be those of
  // parameters(), with new values of `steps`.
  void set_counts(int64_t applied, const std::vector<OptimizedParameter>& parameters);

  // Returns a moment of a segment in the layout of the slice. Elements that the optimizer does not
  // train are zero. If the moment has several pieces, they are copied into `room` on the main
  // state's stream, and the result is `room`. A quantized interval of a parameter begins with the
  // codes instead, followed by the absmax of each block at absmax_bytes(numel).
  float* laid_out(const OptimizedSegment& segment, size_t moment, Buffer& room) const;
  static int64_t absmax_bytes(int64_t numel);

 private:
  std::vector<char> trained_now() const;
  void add_segments();
  void add_segment(const EngineUnit& unit, const MainSegment& segment,
                   std::vector<OptimizedSegment>& added) const;
  std::vector<MomentPiece> pieces_of(const EngineUnit& unit, int segment, int slice) const;
  int64_t moment_bytes(const EngineUnit& unit, const OptimizedSegment& optimized) const;
  void lay_out_blocks(const OptimizedSegment& segment, size_t moment, float* slice) const;
  kernels::StepCount* add_counters(size_t count);
  void write_counters(const std::vector<int64_t>& counts);
  const SegmentLayout& layout_of(const OptimizedSegment& optimized) const;
  void make_runs();
  void make_runs(OptimizedSegment& optimized) const;

  const Parts of_;
  std::vector<OptimizedSegment> segments_;
  std::vector<std::vector<size_t>> of_unit_;  // indices in segments_, by unit
  std::vector<char> trained_;                 // trained_now() when the runs were made
  std::vector<char> known_;                   // one flag per parameter: it was trained before
  std::vector<Buffer> counters_;              // memory of all counters
  kernels::StepCount* applied_ = nullptr;
  int64_t state_bytes_ = 0;
};

}  // namespace fsdp
