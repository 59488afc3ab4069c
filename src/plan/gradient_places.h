// Where the whole gradients of a unit lie until they are reduced: integers only, like the layout.
//
// [Note: zero-copy gradients]
// Gradients are copied into a slot as they arrive, where peers read them. For a unit that is little
// but one large parameter (word embeddings, a vocabulary's head) this would hold the largest
// gradient of the model twice. Such a gradient stays where LibTorch has made it, as LibTorch's own
// accumulation keeps a gradient that nobody else holds, and is sent from there. The slot holds the
// rest of the segment, as if the parameter were cut out of it:
//
//   segment   |p0|gap|lent ···············|gap|p2|padding|
//   sent      |head  |gradient            |tail          |
//   slot      |head  |tail          |
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "plan/shard_layout.h"

namespace fsdp {

class GradientPlaces {
 public:
  // A parameter that takes more than half of its segment and at least this many bytes lends.
  static constexpr int64_t kLentBytes = int64_t{1} << 20;

  GradientPlaces() = default;
  // `may_lend`: gradients are summed in slices, unscaled; then those that come in `reduce_dtype`
  // can be lent.
  GradientPlaces(const ShardLayout& layout, DType reduce_dtype, bool may_lend);

  bool lends(int parameter) const;
  bool any_lends() const { return whole_bytes() > slot_bytes_; }
  // All trainable segments, each from a multiple of ShardLayout::kSlotAlignment bytes.
  int64_t slot_bytes() const { return slot_bytes_; }
  // Of element `element` of a trainable segment, which is not lent.
  int64_t slot_offset_bytes(int segment, int64_t element) const;
  int64_t slot_numel(int segment) const;
  // What the slot has no room for, because a parameter lends it.
  int64_t zero_copy_bytes(int segment) const { return segments_[segment].cut * size_of(dtype_); }
  // Slot and lent gradients together.
  int64_t whole_bytes() const;
  // A segment that lends, in the order of its elements. `slot_at` is where the slot's part of the
  // segment begins.
  std::array<SendRun, 3> runs(int segment, const void* slot_at, const void* zero_copy) const;

 private:
  struct Segment {
    int64_t offset_bytes = 0;  // in the slot
    int64_t numel = 0;         // of the segment
    int zero_copy = -1;
    int64_t zero_copy_begin = 0, zero_copy_numel = 0;
    int64_t cut = 0;  // elements of lent_numel that the slot leaves out: whole alignments
  };

  DType dtype_ = DType::kFloat32;
  std::vector<Segment> segments_;
  int64_t slot_bytes_ = 0;
};

}  // namespace fsdp
