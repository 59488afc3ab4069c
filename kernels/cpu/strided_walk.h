// Visits a strided source in the order of its contiguous destination. It walks in contiguous runs
// and tiles, so that it uses every element of a cache line while the line is in the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kernels/cpu/target_clones.h"
#include "kernels/folded_source.h"

namespace fsdp::kernels {

// Copies a tile so that the source's strided dimension becomes contiguous: row r, column c of
// `tile` is from[r · row_step + c · stride]. The inner loop reads one column, row by row, because
// the source is densest in that direction.
template <class From>
FSDP_INLINE void gather_tile(const From* from, int64_t rows, int64_t row_step, int64_t columns,
                             int64_t stride, From* tile, int64_t tile_width) {
  for (int64_t column = 0; column < columns; ++column) {
    const From* line = from + column * stride;
    if (row_step == 1) {
#pragma GCC ivdep
      for (int64_t row = 0; row < rows; ++row) tile[row * tile_width + column] = line[row];
    } else {
#pragma GCC ivdep
      for (int64_t row = 0; row < rows; ++row) {
        tile[row * tile_width + column] = line[row * row_step];
      }
    }
  }
}

// Calls run(destination offset, values, stride of the values, count) for runs along the last
// dimension. Together the runs cover every element once. If the source is denser in another
// dimension, elements are first gathered into a tile, and `values` points into the tile.
// Requires: numel > 0.
template <class From, class Run>
FSDP_INLINE void walk(const FoldedSource& folded, const From* source, Run run) {
  constexpr int64_t kTile = 64;
  constexpr int64_t kTileWidth = kTile + 1;  // odd: a column spreads over all cache sets
  const int last = folded.dims - 1;
  const int across = closest_dim(folded);
  const int64_t columns = folded.sizes[last];
  const int64_t stride = folded.strides[last];
  const int64_t rows = across == last ? 1 : folded.sizes[across];
  const int64_t row_step = across == last ? 0 : folded.strides[across];
  const int64_t row_destination = across == last ? 0 : folded.destination_strides[across];
  const bool tiled = is_denser_across(folded);

  From tile[kTile * kTileWidth];
  int64_t index[kMaxDims] = {};  // indices of the dimensions other than `last` and `across`
  int64_t from = 0;
  int64_t to = 0;
  while (true) {
    if (!tiled) {
      for (int64_t row = 0; row < rows; ++row) {
        run(to + row * row_destination, source + from + row * row_step, stride, columns);
      }
    } else {
      for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
        const int64_t tile_rows = std::min(kTile, rows - row0);
        for (int64_t column = 0; column < columns; column += kTile) {
          const int64_t count = std::min(kTile, columns - column);
          gather_tile(source + from + row0 * row_step + column * stride, tile_rows, row_step, count,
                      stride, tile, kTileWidth);
          for (int64_t row = 0; row < tile_rows; ++row) {
            run(to + (row0 + row) * row_destination + column, tile + row * kTileWidth, 1, count);
          }
        }
      }
    }
    // The loop advances the index of the other dimensions, fastest first, with carries.
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

}  // namespace fsdp::kernels
