#include "plan/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "fsdp/error.h"

namespace fsdp {

void ShardLayout::require_granule(int64_t granule) {
  if (granule > 0 && granule <= kPageNumel && (granule & (granule - 1)) == 0) return;
  throw InvalidArgument(
      {.what = fmt::format("shard_granule is {}, expected a power of two from 1 to {}", granule,
                           kPageNumel),
       .where = "Options::shard_granule",
       .hint = "use 1, or 256 (AdamW8bit::kBlockNumel) for AdamW8bit"});
}

ShardLayout::ShardLayout(std::vector<ParameterSpec> parameters, int ranks, int64_t granule)
    : parameters_(std::move(parameters)), ranks_(ranks), granule_(granule) {
  places_.resize(parameters_.size());
  // Gaps are listed because kernels and collectives work on whole segments. So the elements of a
  // gap must be zero in every buffer.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int index = segment_for(parameters_[i]);
    SegmentLayout& segment = segments_[index];
    const int64_t offset = round_up(segment.numel, alignment());
    if (offset > segment.numel) segment.gaps.push_back({segment.numel, offset - segment.numel});
    places_[i] = {index, static_cast<int>(segment.parameters.size())};
    segment.parameters.push_back({static_cast<int>(i), offset, parameters_[i].numel});
    segment.numel = offset + parameters_[i].numel;
  }
  // all_gather and reduce_scatter need pieces of equal size, so the end of the segment is padded.
  for (SegmentLayout& segment : segments_) {
    const int64_t share = divide_up(segment.numel, ranks_);
    const bool pages = ranks_ > 1 && share >= kPagedSliceNumel;
    segment.slice_numel = round_up(share, pages ? kPageNumel : std::max(kSliceAlignment, granule_));
    const int64_t padded = segment.slice_numel * ranks_;
    if (padded > segment.numel) segment.gaps.push_back({segment.numel, padded - segment.numel});
    segment.numel = padded;
  }
}

// Frozen parameters have their own segments, because they are neither reduced nor updated and need
// no main gradient.
int ShardLayout::segment_for(const ParameterSpec& parameter) {
  const auto found = std::find_if(segments_.begin(), segments_.end(), [&](const SegmentLayout& s) {
    return s.dtype == parameter.dtype && s.trainable == parameter.trainable;
  });
  if (found != segments_.end()) return static_cast<int>(found - segments_.begin());
  segments_.push_back({.dtype = parameter.dtype, .trainable = parameter.trainable});
  return static_cast<int>(segments_.size()) - 1;
}

const PlacedParameter& ShardLayout::place_of(int parameter) const {
  const Place& place = places_[parameter];
  return segments_[place.segment].parameters[place.index];
}

std::vector<Interval> ShardLayout::intervals(int segment, int rank) const {
  const int64_t slice_begin = segments_[segment].slice_numel * rank;
  const int64_t slice_end = slice_begin + segments_[segment].slice_numel;
  std::vector<Interval> intervals;
  for (const PlacedParameter& placed : segments_[segment].parameters) {
    const int64_t begin = std::clamp(placed.offset, slice_begin, slice_end);
    const int64_t end = std::clamp(placed.offset + placed.numel, slice_begin, slice_end);
    const bool empty = begin == end;
    intervals.push_back({.parameter = placed.parameter,
                         .begin = empty ? 0 : begin - placed.offset,
                         .offset = empty ? 0 : begin - slice_begin,
                         .numel = end - begin});
  }
  return intervals;
}

int64_t ShardLayout::unsharded_offset_bytes(int segment) const {
  int64_t offset = 0;
  for (int i = 0; i < segment; ++i) offset += round_up(segments_[i].bytes(), kSlotAlignment);
  return offset;
}

int64_t ShardLayout::unsharded_bytes() const {
  return unsharded_offset_bytes(static_cast<int>(segments_.size()));
}

int64_t ShardLayout::slice_numel() const {
  int64_t numel = 0;
  for (const SegmentLayout& segment : segments_) numel += segment.slice_numel;
  return numel;
}

void ShardLayout::make_trainable(int segment) { segments_[segment].trainable = true; }

int64_t ShardLayout::trainable_slice_numel() const {
  int64_t numel = 0;
  for (const SegmentLayout& segment : segments_)
    numel += segment.trainable ? segment.slice_numel : 0;
  return numel;
}

int64_t ShardLayout::parameter_numel() const {
  int64_t numel = 0;
  for (const ParameterSpec& parameter : parameters_) numel += parameter.numel;
  return numel;
}

}  // namespace fsdp
