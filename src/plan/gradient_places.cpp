#include "plan/gradient_places.h"

#include <algorithm>

#include "base/bytes.h"

namespace fsdp {

GradientPlaces::GradientPlaces(const ShardLayout& layout, DType reduce_dtype, bool may_lend)
    : dtype_(reduce_dtype) {
  for (const SegmentLayout& segment : layout.segments()) {
    Segment& own = segments_.emplace_back();
    own.offset_bytes = slot_bytes_;
    if (!segment.trainable) continue;
    own.numel = segment.numel;
    // At most one parameter can be more than half of the segment. This parameter must have the
    // dtype that is sent, because a zero-copy gradient is sent without a cast.
    for (const PlacedParameter& place : segment.parameters) {
      const bool large = place.numel * size_of(dtype_) >= kLentBytes;
      if (!may_lend || !large || 2 * place.numel <= segment.numel || segment.dtype != dtype_) {
        continue;
      }
      own.zero_copy = place.parameter;
      own.zero_copy_begin = place.offset;
      own.zero_copy_numel = place.numel;
      // The cut is a multiple of the alignment, so that later parameters stay aligned in the slot.
      own.cut = place.numel / ShardLayout::kAlignment * ShardLayout::kAlignment;
    }
    slot_bytes_ += round_up((own.numel - own.cut) * size_of(dtype_), ShardLayout::kSlotAlignment);
  }
}

bool GradientPlaces::lends(int parameter) const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const Segment& segment) { return segment.zero_copy == parameter; });
}

int64_t GradientPlaces::slot_offset_bytes(int segment, int64_t element) const {
  const Segment& own = segments_[segment];
  const bool behind = element >= own.zero_copy_begin + own.zero_copy_numel;
  return own.offset_bytes + (behind ? element - own.cut : element) * size_of(dtype_);
}

int64_t GradientPlaces::slot_numel(int segment) const {
  return segments_[segment].numel - segments_[segment].cut;
}

int64_t GradientPlaces::whole_bytes() const {
  int64_t bytes = slot_bytes_;
  for (size_t i = 0; i < segments_.size(); ++i) bytes += zero_copy_bytes(static_cast<int>(i));
  return bytes;
}

std::array<SendRun, 3> GradientPlaces::runs(int segment, const void* slot_at,
                                            const void* zero_copy) const {
  const Segment& own = segments_[segment];
  const int64_t zero_copy_end = own.zero_copy_begin + own.zero_copy_numel;
  const auto* slot = static_cast<const std::byte*>(slot_at);
  return {SendRun{slot, own.zero_copy_begin}, SendRun{zero_copy, own.zero_copy_numel},
          SendRun{slot + (zero_copy_end - own.cut) * size_of(dtype_), own.numel - zero_copy_end}};
}

}  // namespace fsdp
