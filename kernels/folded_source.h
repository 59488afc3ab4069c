// Merges the dimensions of a strided source into as few as possible.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "kernels/strided.h"

namespace fsdp::kernels {

// A source without dimensions of size 1. Two neighbouring dimensions are merged if one step of the
// slower one equals a full pass over the faster one. At least one dimension remains.
struct FoldedSource {
  int dims = 0;
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};
  int64_t destination_strides[kMaxDims] = {};
};

// Returns the folded form of `source`, with the strides of its contiguous destination.
inline FoldedSource fold(const StridedSource& source) {
  FoldedSource folded;
  for (int dim = 0; dim < source.dims; ++dim) {
    const int64_t size = source.sizes[dim];
    const int64_t stride = source.strides[dim];
    if (size == 1) continue;
    const int last = folded.dims - 1;
    if (last >= 0 && folded.strides[last] == stride * size) {
      folded.sizes[last] *= size;
      folded.strides[last] = stride;
    } else {
      folded.sizes[folded.dims] = size;
      folded.strides[folded.dims++] = stride;
    }
  }
  if (folded.dims == 0) {
    folded.sizes[0] = folded.strides[0] = 1;
    folded.dims = 1;
  }
  int64_t step = 1;
  for (int dim = folded.dims - 1; dim >= 0; --dim) {
    folded.destination_strides[dim] = step;
    step *= folded.sizes[dim];
  }
  return folded;
}

// Returns the dimension with the smallest stride in the source, among all dimensions except the
// last. If there is only one dimension, returns that one.
inline int closest_dim(const FoldedSource& folded) {
  int closest = folded.dims - 1;
  for (int dim = folded.dims - 2; dim >= 0; --dim) {
    const bool first = closest == folded.dims - 1;
    if (first || std::abs(folded.strides[dim]) < std::abs(folded.strides[closest])) closest = dim;
  }
  return closest;
}

// Returns true if the source is denser in another dimension than in the last one. Reading along
// that dimension is then fastest.
inline bool is_denser_across(const FoldedSource& folded) {
  const int last = folded.dims - 1;
  const int across = closest_dim(folded);
  // A stride of 0 reads the same element repeatedly, so it counts as dense as a stride of 1.
  const int64_t nearest = std::abs(folded.strides[across]);
  return across != last && std::abs(folded.strides[last]) > (nearest > 1 ? nearest : 1);
}

}  // namespace fsdp::kernels
