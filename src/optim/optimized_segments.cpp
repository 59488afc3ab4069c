#include "optim/optimized_segments.h"

#include <algorithm>
#include <map>

#include "base/bytes.h"
#include "fsdp/optim.h"
#include "kernels/fill.h"
#include "runtime/device_error_place.h"

namespace fsdp {

namespace {

// Pieces begin at multiples of 64 bytes, one cache line.
constexpr int64_t kPieceBytes = ShardLayout::kSliceAlignment * size_of(DType::kFloat32);

int64_t blocks_of(int64_t numel) { return divide_up(numel, kernels::kQuantizedBlock); }

}  // namespace

int64_t MomentPiece::absmax_begin() const { return begin + round_up(numel, kPieceBytes); }

int64_t MomentPiece::end() const {
  constexpr int64_t kFloat = size_of(DType::kFloat32);
  return is_quantized ? absmax_begin() + blocks_of(numel) * kFloat : begin + numel * kFloat;
}

size_t OptimizedSegment::piece_of(int64_t offset) const {
  const auto after = std::ranges::upper_bound(pieces, offset, {}, &MomentPiece::offset);
  return static_cast<size_t>(after - pieces.begin()) - 1;
}

float* OptimizedSegment::values_at(size_t moment, int64_t offset) const {
  const MomentPiece& piece = pieces[piece_of(offset)];
  auto* bytes = static_cast<std::byte*>(moments[moment].data());
  return reinterpret_cast<float*>(bytes + piece.begin) + (offset - piece.offset);
}

kernels::QuantizedMoment OptimizedSegment::blocks_at(size_t moment, int64_t offset) const {
  const MomentPiece& piece = pieces[piece_of(offset)];
  auto* bytes = static_cast<std::byte*>(moments[moment].data());
  const int64_t element = offset - piece.offset;
  return {.codes = reinterpret_cast<uint8_t*>(bytes + piece.begin) + element,
          .absmax = reinterpret_cast<float*>(bytes + piece.absmax_begin()) +
                    element / kernels::kQuantizedBlock};
}

int64_t OptimizedSegment::moment_bytes() const { return pieces.empty() ? 0 : pieces.back().end(); }

bool OptimizedSegments::is_quantized(const ParameterSpec& parameter) const {
  return of_.quantizes && parameter.numel >= AdamW8bit::kMinNumel;
}

int64_t OptimizedSegments::absmax_bytes(int64_t numel) {
  return blocks_of(numel) * kernels::kQuantizedBlock;
}

OptimizedSegments::OptimizedSegments(const Parts& parts)
    : of_(parts), of_unit_(parts.engine.model.units.size()), applied_(add_counters(1)) {
  make_runs();
}

OptimizedSegments::~OptimizedSegments() {
  if (state_bytes_ > 0) of_.engine.add_memory(MemoryCategory::kOptimizerState, -state_bytes_);
}

const SegmentLayout& OptimizedSegments::layout_of(const OptimizedSegment& optimized) const {
  return of_.engine.model.units[optimized.unit]->shard->layout().segments()[optimized.segment];
}

// Returns one flag per parameter, in the order of units. A flag is 1 if this optimizer updates the
// parameter now.
std::vector<char> OptimizedSegments::trained_now() const {
  std::vector<char> trained;
  for (const auto& unit : of_.engine.model.units) {
    int parameter = 0;
    for (const at::Tensor& each : unit->shard->tensors()) {
      const bool is_chosen = of_.chosen.has(unit->index, parameter++);
      trained.push_back(is_chosen && each.requires_grad() ? 1 : 0);
    }
  }
  return trained;
}

// Allocates counters in the memory of the main state. Their initial value is zero.
kernels::StepCount* OptimizedSegments::add_counters(size_t count) {
  const auto bytes = static_cast<int64_t>(count * sizeof(kernels::StepCount));
  counters_.push_back(with_place([] { return "the optimizer's counters"; },
                                 [&] { return of_.engine.context->main->allocate_own(bytes); }));
  return static_cast<kernels::StepCount*>(counters_.back().data());
}

// Returns the ranges of the slice that have moments. Neighbouring parameters whose moments have the
// same form are one range, including the gap between them. Ranges begin at multiples of
// kSliceAlignment elements in the slice and of kPieceBytes in the moments, so that the parameters
// and the moments of a range have the same alignment in kernels.
std::vector<MomentPiece> OptimizedSegments::pieces_of(const EngineUnit& unit, int segment,
                                                      int slice) const {
  const ShardLayout& layout = unit.shard->layout();
  const std::vector<Interval> intervals = layout.intervals(segment, slice);
  const auto is_chosen = [&](const Interval& each) {
    return of_.chosen.has(unit.index, each.parameter);
  };
  if (!of_.quantizes && std::ranges::all_of(intervals, is_chosen)) {
    return {{.numel = layout.segments()[segment].slice_numel}};
  }
  std::vector<MomentPiece> pieces;
  bool adjoins = false;  // true if the optimizer trains the previous parameter
  for (const Interval& own : intervals) {
    if (own.numel == 0) continue;
    const bool adds = is_chosen(own);
    const bool quantizes = is_quantized(layout.parameters()[own.parameter]);
    if (adds && adjoins && pieces.back().is_quantized == quantizes) {
      pieces.back().numel = own.offset + own.numel - pieces.back().offset;
    } else if (adds) {
      pieces.push_back({.offset = own.offset,
                        .numel = own.numel,
                        .begin = pieces.empty() ? 0 : round_up(pieces.back().end(), kPieceBytes),
                        .is_quantized = quantizes});
    }
    adjoins = adds;
  }
  return pieces;
}

// Returns the bytes of each moment. Ranks have different numbers of quantized elements. All ranks
// allocate the bytes of the rank that needs most, so that a plan is valid for every rank.
int64_t OptimizedSegments::moment_bytes(const EngineUnit& unit,
                                        const OptimizedSegment& optimized) const {
  int64_t bytes = optimized.moment_bytes();
  if (!of_.quantizes) return bytes;
  for (int slice = 0; slice < unit.shard->layout().ranks(); ++slice) {
    const std::vector<MomentPiece> pieces = pieces_of(unit, optimized.segment, slice);
    if (!pieces.empty()) bytes = std::max(bytes, pieces.back().end());
  }
  return bytes;
}

void OptimizedSegments::add_segment(const EngineUnit& unit, const MainSegment& segment,
                                    std::vector<OptimizedSegment>& added) const {
  const auto& placed = unit.shard->layout().segments()[segment.segment].parameters;
  const auto first = std::ranges::find_if(placed, [&](const PlacedParameter& each) {
    return of_.chosen.has(unit.index, each.parameter);
  });
  if (first == placed.end()) return;
  const int slice = unit.shard->collectives().main_rank(of_.engine.context->mesh.rank());
  OptimizedSegment optimized{.unit = unit.index,
                             .segment = segment.segment,
                             .first = first->parameter,
                             .runs = {},
                             .pieces = pieces_of(unit, segment.segment, slice)};
  const int64_t bytes = moment_bytes(unit, optimized);
  for (int moment = 0; moment < of_.moments; ++moment) {
    optimized.moments.push_back(
        with_place([&] { return unit.describe("optimizer state"); },
                   [&] { return of_.engine.context->main->allocate_own(bytes); }));
  }
  added.push_back(std::move(optimized));
}

// Adds the segments that are trainable now and were not added before. Called at construction, and
// after parameters were unfrozen. The moments begin at zero.
void OptimizedSegments::add_segments() {
  // Memory is allocated before any member changes, so the next step can try again after an
  // OutOfMemory.
  std::vector<OptimizedSegment> added;
  for (const auto& unit : of_.engine.model.units) {
    if (!of_.chosen.any_of(unit->index)) continue;
    for (const MainSegment& segment : unit->shard->main_segments()) {
      const bool known = std::ranges::any_of(of_unit(unit->index), [&](size_t each) {
        return segments_[each].segment == segment.segment;
      });
      if (!known) add_segment(*unit, segment, added);
    }
  }
  // There is one counter per segment. A counter's address stays valid, because a buffer is never
  // resized. Only write_counters replaces the counters, and with them all addresses.
  kernels::StepCount* counters = add_counters(added.size());
  int64_t bytes = 0;
  for (OptimizedSegment& optimized : added) {
    for (const Buffer& each : optimized.moments) bytes += each.bytes();
    optimized.counters = {counters};
    optimized.step_of.assign(layout_of(optimized).parameters.size(), counters++);
    of_unit_[optimized.unit].push_back(segments_.size());
    segments_.push_back(std::move(optimized));
  }
  if (bytes > 0) of_.engine.add_memory(MemoryCategory::kOptimizerState, bytes);
  state_bytes_ += bytes;
}

void OptimizedSegments::follow_trained() {
  if (trained_now() != trained_) make_runs();
}

void OptimizedSegments::make_runs() {
  std::vector<char> trained = trained_now();
  add_segments();
  known_.resize(trained.size());
  for (size_t i = 0; i < trained.size(); ++i) known_[i] |= trained[i];
  for (OptimizedSegment& optimized : segments_) make_runs(optimized);
  trained_ = std::move(trained);
}

void OptimizedSegments::make_runs(OptimizedSegment& optimized) const {
  const ShardUnit& shard = *of_.engine.model.units[optimized.unit]->shard;
  optimized.runs.clear();
  const std::vector<PlacedParameter>& parameters = layout_of(optimized).parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int parameter = parameters[i].parameter;
    const Interval& interval = shard.main().local(parameter);
    const bool is_trained =
        of_.chosen.has(optimized.unit, parameter) && shard.tensors()[parameter].requires_grad();
    if (interval.numel == 0 || !is_trained) continue;
    const OptimizerRun run{.offset = interval.offset,
                           .numel = interval.numel,
                           .piece = optimized.piece_of(interval.offset),
                           .group = of_.group_of[optimized.unit][parameter],
                           .parameter = parameter,
                           .step = optimized.step_of[i]};
    OptimizerRun* last = optimized.runs.empty() ? nullptr : &optimized.runs.back();
    // Neighbouring parameters are joined, so that a kernel call has few OptimizerRuns. The gap
    // between two parameters is zero and stays zero under every rule. Blocks are not divided,
    // because parameters with quantized moments begin at multiples of a block.
    const bool adjoins =
        of_.joins_parameters && last != nullptr && run.piece == last->piece &&
        interval.offset - (last->offset + last->numel) < shard.layout().alignment();
    if (adjoins && last->group == run.group && last->step == run.step) {
      last->numel = run.offset + run.numel - last->offset;
    } else {
      optimized.runs.push_back(run);
    }
  }
}

int64_t OptimizedSegments::read(const kernels::StepCount& counter) const {
  int64_t steps = 0;
  with_place([] { return "count of optimizer steps"; },
             [&] { of_.engine.context->main->stream().read(&steps, &counter.step, sizeof steps); });
  return steps;
}

std::vector<OptimizedParameter> OptimizedSegments::parameters() const {
  std::vector<OptimizedParameter> kept;
  size_t first_of_unit = 0;  // index into known_
  for (const auto& unit : of_.engine.model.units) {
    const size_t first = kept.size();
    for (size_t i = 0; i < segments_.size(); ++i) {
      const OptimizedSegment& optimized = segments_[i];
      if (optimized.unit != unit->index) continue;
      // Each counter is read only once, because each read waits for the device.
      std::map<const kernels::StepCount*, int64_t> steps;
      for (const kernels::StepCount* each : optimized.counters) steps[each] = read(*each);
      const std::vector<PlacedParameter>& placed = layout_of(optimized).parameters;
      for (size_t j = 0; j < placed.size(); ++j) {
        if (!known_[first_of_unit + placed[j].parameter]) continue;
        kept.push_back({.unit = unit->index,
                        .parameter = placed[j].parameter,
                        .segment = i,
                        .steps = steps.at(optimized.step_of[j])});
      }
    }
    // Segments group a unit's parameters by dtype, so the sort restores the order of the unit.
    std::sort(kept.begin() + static_cast<std::ptrdiff_t>(first), kept.end(),
              [](const auto& a, const auto& b) { return a.parameter < b.parameter; });
    first_of_unit += unit->shard->tensors().size();
  }
  return kept;
}

// Sets the counters to the values of a checkpoint. Parameters of a segment that have had equally
// many updates share a counter.
void OptimizedSegments::set_counts(int64_t applied,
                                   const std::vector<OptimizedParameter>& parameters) {
  std::vector<int64_t> counts{applied};
  // counter_of[segment][steps] is the index of a counter in `counts`.
  std::vector<std::map<int64_t, size_t>> counter_of(segments_.size());
  for (const OptimizedParameter& each : parameters) {
    if (counter_of[each.segment].emplace(each.steps, counts.size()).second) {
      counts.push_back(each.steps);
    }
  }
  for (auto& counter : counter_of) {  // for segments without an element in `parameters`
    if (!counter.empty()) continue;
    counter.emplace(0, counts.size());
    counts.push_back(0);
  }
  const std::lock_guard lock(of_.engine.scheduler->mutex);
  write_counters(counts);
  for (size_t i = 0; i < segments_.size(); ++i) {
    OptimizedSegment& optimized = segments_[i];
    optimized.counters.clear();
    for (const auto& [steps, counter] : counter_of[i]) {
      optimized.counters.push_back(applied_ + counter);
    }
    optimized.step_of.assign(optimized.step_of.size(), optimized.counters.front());
  }
  for (const OptimizedParameter& each : parameters) {
    OptimizedSegment& optimized = segments_[each.segment];
    const std::vector<PlacedParameter>& placed = layout_of(optimized).parameters;
    for (size_t j = 0; j < placed.size(); ++j) {
      if (placed[j].parameter != each.parameter) continue;
      optimized.step_of[j] = applied_ + counter_of[each.segment].at(each.steps);
    }
  }
  make_runs();
}

// Replaces all counters. The first counter becomes applied_.
void OptimizedSegments::write_counters(const std::vector<int64_t>& counts) {
  Stream& stream = of_.engine.context->main->stream();
  stream.synchronize();  // issued work may still read the old counters
  counters_.clear();
  applied_ = add_counters(counts.size());
  const auto bytes = static_cast<int64_t>(counts.size() * sizeof(kernels::StepCount));
  const Buffer values = of_.engine.context->streams.device.allocate(bytes, MemoryKind::kPinned);
  for (size_t i = 0; i < counts.size(); ++i) {
    static_cast<kernels::StepCount*>(values.data())[i] = {.step = counts[i]};
  }
  // The pinned buffer is destroyed when this function returns, so the host waits for the copy.
  stream.copy(applied_, values.data(), bytes);
  stream.synchronize();
}

float* OptimizedSegments::laid_out(const OptimizedSegment& segment, size_t moment,
                                   Buffer& room) const {
  const int64_t slice_numel = layout_of(segment).slice_numel;
  const std::vector<MomentPiece>& pieces = segment.pieces;
  // If the only piece is the whole slice, the moment already has the layout of the slice, so no
  // copy is needed.
  if (pieces.size() == 1 && pieces.front().numel == slice_numel && !pieces.front().is_quantized) {
    return static_cast<float*>(segment.moments[moment].data());
  }
  MainPlace& main = *of_.engine.context->main;
  room = main.allocate_own(slice_numel * size_of(DType::kFloat32));
  auto* slice = static_cast<float*>(room.data());
  const kernels::FillRun all{slice, slice_numel};
  kernels::fill_zero(main.stream(), {&all, 1});
  for (const MomentPiece& each : pieces) {
    if (each.is_quantized) continue;
    main.stream().copy(slice + each.offset, segment.values_at(moment, each.offset),
                       each.numel * size_of(DType::kFloat32));
  }
  lay_out_blocks(segment, moment, slice);
  return slice;
}

// Copies the quantized intervals to their places in `slice`. An interval has 4 bytes per element
// there, also in the gap behind its last block, so its codes and absmax have room.
void OptimizedSegments::lay_out_blocks(const OptimizedSegment& segment, size_t moment,
                                       float* slice) const {
  const ShardUnit& shard = *of_.engine.model.units[segment.unit]->shard;
  Stream& stream = of_.engine.context->main->stream();
  for (const PlacedParameter& each : layout_of(segment).parameters) {
    const Interval& own = shard.main().local(each.parameter);
    const bool is_kept = own.numel > 0 && of_.chosen.has(segment.unit, each.parameter);
    if (!is_kept || !is_quantized(shard.layout().parameters()[each.parameter])) continue;
    const kernels::QuantizedMoment from = segment.blocks_at(moment, own.offset);
    auto* const to = reinterpret_cast<std::byte*>(slice + own.offset);
    stream.copy(to, from.codes, own.numel);
    stream.copy(to + absmax_bytes(own.numel), from.absmax,
                blocks_of(own.numel) * size_of(DType::kFloat32));
  }
}

}  // namespace fsdp
