// GradientPlaces assigns places to a unit's whole gradients until they are reduced. Integers only,
// as ShardLayout.
//
// [Note: zero-copy gradients] Gradients are copied into a slot as they arrive, where peers read
// them. If a unit is little more than one large parameter (word embeddings, a vocabulary's head),
// the largest gradient of the model would exist twice. Such a gradient stays in the tensor that
// LibTorch allocated, and is sent from there. (LibTorch's own accumulation also keeps a gradient
// that has no other holder.) The slot holds the rest of the segment, as if the parameter were cut
// out of it:
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
  // A parameter has a zero-copy gradient if it is more than half of its segment and the gradient
  // has at least this many bytes.
  static constexpr int64_t kLentBytes = int64_t{1} << 20;

  GradientPlaces() = default;
  // `may_lend`: gradients are reduced to slices without a scale. Then those of segments with dtype
  // `reduce_dtype` can be zero-copy.
  GradientPlaces(const ShardLayout& layout, DType reduce_dtype, bool may_lend);

  bool lends(int parameter) const;
  bool any_lends() const { return whole_bytes() > slot_bytes_; }
  // Returns the size of a slot for all trainable segments, each from a multiple of
  // ShardLayout::kSlotAlignment bytes.
  int64_t slot_bytes() const { return slot_bytes_; }
  // Returns the offset in the slot of an element of a trainable segment.
  // Requires: the element is not part of a zero-copy gradient.
  int64_t slot_offset_bytes(int segment, int64_t element) const;
  int64_t slot_numel(int segment) const;
  // Returns the bytes that the slot leaves out for the segment's zero-copy gradient.
  int64_t zero_copy_bytes(int segment) const { return segments_[segment].cut * size_of(dtype_); }
  // Returns the bytes of the slot and of all that it leaves out.
  int64_t whole_bytes() const;
  // Returns the runs to send of a segment with a zero-copy gradient, in the order of its elements.
  // The slot's part of the segment begins at `slot_at`, the gradient at `zero_copy`.
  std::array<SendRun, 3> runs(int segment, const void* slot_at, const void* zero_copy) const;

 private:
  struct Segment {
    int64_t offset_bytes = 0;  // in the slot
    int64_t numel = 0;         // of the segment
    int zero_copy = -1;        // parameter, or -1
    int64_t zero_copy_begin = 0, zero_copy_numel = 0;
    int64_t cut = 0;  // elements that the slot leaves out: zero_copy_numel, rounded down
  };

  DType dtype_ = DType::kFloat32;
  std::vector<Segment> segments_;
  int64_t slot_bytes_ = 0;
};

}  // namespace fsdp
