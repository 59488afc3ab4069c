// ShardLayout assigns a position to every element of a unit's parameters. It handles integers only
// and needs neither memory nor LibTorch.
//
// A unit's parameters are grouped into segments. There is one segment for each pair of compute
// dtype and trainability (trainable or frozen). In a segment the parameters follow each other in
// registration order. Each parameter begins at a multiple of kAlignment elements. The segment is
// padded so that all ranks hold slices of equal length. Gaps and padding are always zero. Slices
// divide a parameter only at multiples of `granule` of its elements.
//
//   segment   |p0······|gap|p1···|gap|p2·|padding|
//   slices    |  rank 0    |  rank 1   |  rank 2 |
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/dtype.h"

namespace fsdp {

struct ParameterSpec {
  std::string fqn;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;   // dense and non-overlapping, in elements
  DType dtype = DType::kFloat32;  // dtype in forward and backward
  bool trainable = true;
  int64_t numel = 0;
  bool operator==(const ParameterSpec&) const = default;
};

// The contiguous run of a parameter's elements in its segment.
struct PlacedParameter {
  int parameter = 0;   // index into ShardLayout::parameters()
  int64_t offset = 0;  // elements from the segment's start
  int64_t numel = 0;
  bool operator==(const PlacedParameter&) const = default;
};

// The contiguous run of a parameter's elements in a rank's slice. Elements [begin, begin + numel)
// of the parameter are at `offset` in the slice.
struct Interval {
  int parameter = 0;
  int64_t begin = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  bool operator==(const Interval&) const = default;
};

// A contiguous run of gap or padding elements of a segment.
struct Gap {
  int64_t offset = 0;
  int64_t numel = 0;
  bool operator==(const Gap&) const = default;
};

struct SegmentLayout {
  DType dtype = DType::kFloat32;
  bool trainable = true;
  int64_t numel = 0;        // padded: slice_numel · ranks
  int64_t slice_numel = 0;  // length of each rank's slice
  std::vector<PlacedParameter> parameters;
  std::vector<Gap> gaps;

  int64_t bytes() const { return numel * size_of(dtype); }
  bool operator==(const SegmentLayout&) const = default;
};

class ShardLayout {
 public:
  // Parameters start at multiples of this many elements, which are 512 bytes in fp32 and 256 in
  // bf16.
  static constexpr int64_t kAlignment = 128;
  // Slice lengths are multiples of this many elements, which are 64 bytes in fp32: one cache line.
  static constexpr int64_t kSliceAlignment = 16;
  // Slices of at least 256 KiB in fp32 consist of whole pages of 4 KiB, so that other processes can
  // map them.
  static constexpr int64_t kPagedSliceNumel = 64 * 1024;
  static constexpr int64_t kPageNumel = 1024;

  // `ranks` is the number of slices and must be at least 1. With one rank the slice is the whole
  // segment. `granule` must satisfy require_granule.
  ShardLayout(std::vector<ParameterSpec> parameters, int ranks, int64_t granule = 1);

  // Throws InvalidArgument unless the granule is a power of two up to kPageNumel. All alignments
  // are powers of two, so the larger one of two alignments is a multiple of the other.
  static void require_granule(int64_t granule);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<SegmentLayout>& segments() const { return segments_; }
  int ranks() const { return ranks_; }
  // Returns the number of elements at whose multiples parameters begin.
  int64_t alignment() const { return std::max(kAlignment, granule_); }

  // Makes a frozen segment trainable. The segment's parameters keep their positions.
  void make_trainable(int segment);

  // Return the segment of a parameter, and the position of the parameter in that segment.
  int segment_of(int parameter) const { return places_[parameter].segment; }
  const PlacedParameter& place_of(int parameter) const;

  // Returns the contiguous runs of the segment's parameters in rank `rank`'s slice. A parameter
  // that has no element in the slice is listed with numel 0, so the list contains every parameter
  // on every rank.
  std::vector<Interval> intervals(int segment, int rank) const;

  // Return the size in bytes of a slot for all gathered segments, and the offset of a segment in
  // the slot. Each segment begins at a multiple of kSlotAlignment bytes.
  static constexpr int64_t kSlotAlignment = 512;
  int64_t unsharded_bytes() const;
  int64_t unsharded_offset_bytes(int segment) const;

  int64_t slice_numel() const;            // main elements of one rank in all segments
  int64_t trainable_slice_numel() const;  // those in trainable segments
  int64_t parameter_numel() const;        // elements of parameters, without gaps and padding
  bool has_trainable() const { return trainable_slice_numel() > 0; }

 private:
  struct Place {
    int segment = 0;
    int index = 0;
  };
  int segment_for(const ParameterSpec& parameter);

  std::vector<ParameterSpec> parameters_;
  int ranks_;
  int64_t granule_;
  std::vector<SegmentLayout> segments_;
  std::vector<Place> places_;
};

}  // namespace fsdp
