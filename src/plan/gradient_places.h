// GradientPlaces assigns positions in memory to a unit's whole gradients. The positions are valid
// until the gradients are reduced. Like the class ShardLayout, it handles integers only.
//
// [Note: zero-copy gradients] Usually gradients are copied into a slot as they arrive, and peers
// read them from the slot. Some units are little more than one large parameter (word embeddings,
// the output layer over a vocabulary). For such a unit the largest gradient of the model would
// exist twice, in LibTorch's tensor and in the slot. So this gradient stays in the tensor that
// LibTorch allocated and is sent from this tensor. (LibTorch's own accumulation also keeps a
// gradient without a copy if the gradient has no other holder.) The unit's slot holds the rest of
// the segment, as if the parameter were cut out of the segment:
//
//   segment   |p0|gap|zero-copy ··········|gap|p2|padding|
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
  // A parameter has a zero-copy gradient if two conditions hold: the parameter is more than half of
  // its segment, and its gradient has at least this many bytes.
  static constexpr int64_t kLentBytes = int64_t{1} << 20;

  GradientPlaces() = default;
  // `may_lend` is true if the unit's gradients are reduced to slices and sent without scaling. A
  // gradient can be zero-copy only if `may_lend` is true and the dtype of its segment is
  // `reduce_dtype`.
  GradientPlaces(const ShardLayout& layout, DType reduce_dtype, bool may_lend);

  bool lends(int parameter) const;
  bool any_lends() const { return whole_bytes() > slot_bytes_; }
  // Returns the size of a slot for all trainable segments. Each segment begins at a multiple of
  // ShardLayout::kSlotAlignment bytes.
  int64_t slot_bytes() const { return slot_bytes_; }
  // Returns the offset, in the slot, of an element of a trainable segment. The element must not be
  // part of a zero-copy gradient.
  int64_t slot_offset_bytes(int segment, int64_t element) const;
  int64_t slot_numel(int segment) const;
  // Returns the number of bytes that the slot omits because the segment has a zero-copy gradient.
  int64_t zero_copy_bytes(int segment) const { return segments_[segment].cut * size_of(dtype_); }
  // Returns the slot's size plus all bytes that the slot omits.
  int64_t whole_bytes() const;
  // Returns the contiguous runs to send for a segment with a zero-copy gradient, in the order of
  // the segment's elements. The slot's part of the segment begins at `slot_at`. The gradient begins
  // at `zero_copy`.
  std::array<SendRun, 3> runs(int segment, const void* slot_at, const void* zero_copy) const;

 private:
  struct Segment {
    int64_t offset_bytes = 0;  // in the slot
    int64_t numel = 0;         // number of elements in the segment
    int zero_copy = -1;        // index of the parameter with a zero-copy gradient, or -1
    int64_t zero_copy_begin = 0, zero_copy_numel = 0;
    int64_t cut = 0;  // omitted by the slot: zero_copy_numel, rounded down to kAlignment
  };

  DType dtype_ = DType::kFloat32;
  std::vector<Segment> segments_;
  int64_t slot_bytes_ = 0;
};

}  // namespace fsdp
