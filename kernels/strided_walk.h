// Walks a strided source in the order of its contiguous destination, in runs and tiles that use
// each cache line while it is there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kernels/strided.h"
#include "kernels/target_clones.h"

namespace fsdp::kernels {

// A source without dimensions of size 1, with neighbours merged where one step of the slower is a
// whole round of the faster; at least one dimension.
struct FoldedSource {
  int dims = 0;
  int64_t sizes[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};
  int64_t destination_strides[kMaxDims] = {};
};

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

// The dimension, other than the last, in which the source's elements lie closest; the last if
// alone.
inline int closest_dim(const FoldedSource& folded) {
  int closest = folded.dims - 1;
  for (int dim = folded.dims - 2; dim >= 0; --dim) {
    const bool first = closest == folded.dims - 1;
    if (first || std::abs(folded.strides[dim]) < std::abs(folded.strides[closest])) closest = dim;
  }
  return closest;
}

// Calls visit(destination offset, source offset, source stride, count) for runs along the last
// dimension that cover every element once. When the last dimension is not the closest, the runs are
// short and go round in tiles, so that neighbours in the source are visited soon.
// Requires: numel > 0.
template <class Visit>
FSDP_INLINE void walk(const FoldedSource& folded, Visit visit) {
  constexpr int64_t kTile = 32;
  const int last = folded.dims - 1;
  const int across = closest_dim(folded);
  const bool tiled = across != last && std::abs(folded.strides[last]) > 1;
  const int64_t run = tiled ? kTile : folded.sizes[last];
  const int64_t rows = across == last ? 1 : folded.sizes[across];
  const int64_t row_step = across == last ? 0 : folded.strides[across];
  const int64_t row_destination = across == last ? 0 : folded.destination_strides[across];
  const int64_t row_tile = tiled ? kTile : rows;

  int64_t index[kMaxDims] = {};  // of the dimensions that are neither last nor across
  int64_t from = 0;
  int64_t to = 0;
  while (true) {
    for (int64_t row0 = 0; row0 < rows; row0 += row_tile) {
      for (int64_t start = 0; start < folded.sizes[last]; start += run) {
        const int64_t count = std::min(run, folded.sizes[last] - start);
        for (int64_t row = row0; row < std::min(row0 + row_tile, rows); ++row) {
          visit(to + row * row_destination + start,
                from + row * row_step + start * folded.strides[last], folded.strides[last], count);
        }
      }
    }
    int dim = last;
    for (; dim >= 0; --dim) {
      if (dim == last || dim == across) continue;
      from += folded.strides[dim];
      to += folded.destination_strides[dim];
      if (++index[dim] < folded.sizes[dim]) break;
      from -= folded.strides[dim] * folded.sizes[dim];
      to -= folded.destination_strides[dim] * folded.sizes[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

// Errors: InvalidArgument if the number of dimensions is not 0 … kMaxDims.
void require_dims(std::string_view kernel, const StridedSource& source);

}  // namespace fsdp::kernels
