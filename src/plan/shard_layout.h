// Where every element of a unit's parameters lives: integers only, no memory and no torch.
//
// A unit's parameters are grouped into segments: one for each (compute dtype, trainable or frozen).
// In a segment parameters follow each other in registration order, each from a multiple of
// kAlignment elements; the segment is padded so that all ranks hold equally long slices. Gaps and
// padding are always zero.
//
//   segment   |p0······|gap|p1···|gap|p2·|padding|
//   slices    |  rank 0    |  rank 1   |  rank 2 |
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/dtype.h"

namespace fsdp {

struct ParameterSpec {
  std::string fqn;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;   // dense and non-overlapping, in elements
  DType dtype = DType::kFloat32;  // of forward and backward
  bool trainable = true;
  int64_t numel = 0;
  bool operator==(const ParameterSpec&) const = default;
};

// A parameter's run in its segment.
struct PlacedParameter {
  int parameter = 0;   // index into ShardLayout::parameters()
  int64_t offset = 0;  // elements from the segment's start
  int64_t numel = 0;
  bool operator==(const PlacedParameter&) const = default;
};

// Elements [begin, begin + numel) of a parameter lie at `offset` of a rank's slice.
struct Interval {
  int parameter = 0;
  int64_t begin = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  bool operator==(const Interval&) const = default;
};

// A run of gap or padding elements of a segment.
struct Gap {
  int64_t offset = 0;
  int64_t numel = 0;
  bool operator==(const Gap&) const = default;
};

struct SegmentLayout {
  DType dtype = DType::kFloat32;
  bool trainable = true;
  int64_t numel = 0;        // padded: slice_numel · ranks
  int64_t slice_numel = 0;  // of each rank
  std::vector<PlacedParameter> parameters;
  std::vector<Gap> gaps;

  int64_t bytes() const { return numel * size_of(dtype); }
  bool operator==(const SegmentLayout&) const = default;
};

class ShardLayout {
 public:
  // Parameters start at multiples of this many elements: 512 bytes in fp32, 256 in bf16.
  static constexpr int64_t kAlignment = 128;
  // Slices are multiples of this many elements: 64 bytes in fp32, a cache line.
  static constexpr int64_t kSliceAlignment = 16;
  // Slices of at least 256 KiB in fp32 are whole pages of 4 KiB, which other processes can map.
  static constexpr int64_t kPagedSliceNumel = 64 * 1024;
  static constexpr int64_t kPageNumel = 1024;

  // `ranks` ≥ 1 is the size of the shard group. With one rank a slice is the segment.
  ShardLayout(std::vector<ParameterSpec> parameters, int ranks);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<SegmentLayout>& segments() const { return segments_; }
  int ranks() const { return ranks_; }

  // A frozen segment gets gradients from now on. Parameters stay where they are.
  void make_trainable(int segment);

  // Segment of a parameter and its run there.
  int segment_of(int parameter) const { return places_[parameter].segment; }
  const PlacedParameter& place_of(int parameter) const;

  // What rank `rank` holds of each parameter of the segment; parameters with no element there are
  // listed with numel 0, so that every rank lists every parameter.
  std::vector<Interval> intervals(int segment, int rank) const;

  // Bytes of all segments gathered (each from a multiple of kSlotAlignment bytes), and the byte
  // offset of a segment in such a slot.
  static constexpr int64_t kSlotAlignment = 512;
  int64_t unsharded_bytes() const;
  int64_t unsharded_offset_bytes(int segment) const;

  int64_t slice_numel() const;            // this many main elements a rank, all segments
  int64_t trainable_slice_numel() const;  // of those, with gradient and optimizer state
  int64_t parameter_numel() const;        // without gaps and padding
  bool has_trainable() const { return trainable_slice_numel() > 0; }

 private:
  struct Place {
    int segment = 0;
    int index = 0;
  };
  int segment_for(const ParameterSpec& parameter);

  std::vector<ParameterSpec> parameters_;
  int ranks_;
  std::vector<SegmentLayout> segments_;
  std::vector<Place> places_;
};

}  // namespace fsdp
