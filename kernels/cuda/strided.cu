// Implements cast_pack_strided and accumulate_strided, which differ only in the arithmetic of one
// element.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/element/block_index.h"
#include "kernels/element/scaled.h"
#include "kernels/element_cast.h"
#include "kernels/folded_source.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kTileRows = kBlockThreads / kTile;  // rows that a thread block accesses at a time

// The arguments of a call, as a kernel parameter.
struct Work {
  FoldedSource folded;
  const void* source;
  void* destination;
  int64_t numel;
  float scale;
  DType from, to;
  bool adds;
  int32_t copied_bytes;  // bytes of an element if elements are copied; 0 if they are converted
};

// The tiles of a call. They extend along the last dimension and along the dimension in which the
// source is densest.
struct Tiling {
  int32_t last, across;
  int64_t rows, columns;  // sizes of the dimensions `across` and `last`
  int64_t row_tiles, column_tiles;
};

// The offsets of an element in the source and in the destination, counted in elements.
struct Offsets {
  int64_t source, destination;
};

// Returns the offsets of an element. `index` is its linear index over all dimensions except two. In
// `except` and `except_too`, -1 excludes no dimension.
__device__ __forceinline__ Offsets offsets_of(const FoldedSource& folded, int64_t index, int except,
                                              int except_too) {
  Offsets at{0, 0};
#pragma unroll 1
  for (int dim = folded.dims - 1; dim >= 0; --dim) {
    if (dim == except || dim == except_too) continue;
    const int64_t size = folded.sizes[dim];
    int64_t here, left;
    // GPUs divide integers in software. A 32-bit division takes far fewer instructions than a
    // 64-bit one.
    if (index < int64_t{1} << 32 && size < int64_t{1} << 32) {
      left = static_cast<uint32_t>(index) / static_cast<uint32_t>(size);
      here = static_cast<uint32_t>(index) % static_cast<uint32_t>(size);
    } else {
      left = index / size;
      here = index % size;
    }
    at.source += here * folded.strides[dim];
    at.destination += here * folded.destination_strides[dim];
    index = left;
  }
  return at;
}

// Converts one element and writes it to the destination, or adds it.
template <class From, class To>
__device__ __forceinline__ void put(const Work& work, From value, To* to) {
  const float product = scaled(to_float(value), work.scale);
  *to = from_float<To>(work.adds ? added(to_float(*to), product) : product);
}
// Calls visit(From{}, To{}, put) with the types of this call.
template <class Visit>
__device__ __forceinline__ void visit_work(const Work& work, Visit visit) {
  const auto copies = [](const Work&, auto value, auto* to) { *to = value; };
  switch (work.copied_bytes) {
    case 8:
      return visit(uint64_t{}, uint64_t{}, copies);
    case 4:
      return visit(uint32_t{}, uint32_t{}, copies);
    case 2:
      return visit(uint16_t{}, uint16_t{}, copies);
    case 1:
      return visit(uint8_t{}, uint8_t{}, copies);
    default:
      break;
  }
  visit_element(work.from, [&](auto from) {
    visit_element(work.to, [&](auto to) {
      visit(from, to, [](const Work& its, auto value, auto* at) { put(its, value, at); });
    });
  });
}

// Reads and writes elements in the destination's order. The writes coalesce; the reads may not.
__global__ void __launch_bounds__(kBlockThreads) strided_kernel(const __grid_constant__ Work work) {
  visit_work(work, [&](auto from, auto to, auto put_element) {
    const auto* source = static_cast<const decltype(from)*>(work.source);
    auto* destination = static_cast<decltype(to)*>(work.destination);
#pragma unroll 1
    for (int iteration = 0; iteration < kBlockNumel / kBlockThreads; ++iteration) {
      const int64_t i = element_of(blockIdx.x, static_cast<int>(threadIdx.x), iteration, 1);
      if (i >= work.numel) return;
      put_element(work, source[offsets_of(work.folded, i, -1, -1).source], destination + i);
    }
  });
}

// Reads tiles along the source's densest dimension and writes them along the destination's last
// dimension, so both the reads and the writes coalesce.
__global__ void __launch_bounds__(kBlockThreads)
    transpose_kernel(const __grid_constant__ Work work, const Tiling tiling) {
  // The odd row length puts the elements of a column into different banks. The array has the
  // type of the widest element, because the element type is known only inside visit_work.
  __shared__ uint64_t tile[kTile * (kTile + 1)];
  const int64_t block = blockIdx.x;
  const int64_t column0 = block % tiling.column_tiles * kTile;
  const int64_t row0 = block / tiling.column_tiles % tiling.row_tiles * kTile;
  const int64_t plane = block / tiling.column_tiles / tiling.row_tiles;
  const Offsets at = offsets_of(work.folded, plane, tiling.last, tiling.across);
  const int64_t stride = work.folded.strides[tiling.last];
  const int64_t row_step = work.folded.strides[tiling.across];
  const int64_t row_destination = work.folded.destination_strides[tiling.across];
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  visit_work(work, [&](auto from, auto to, auto put_element) {
    using From = decltype(from);
    auto* values = reinterpret_cast<From*>(tile);
    const auto* source = static_cast<const From*>(work.source) + at.source;
    auto* destination = static_cast<decltype(to)*>(work.destination) + at.destination;
#pragma unroll 1
    for (int k = y; k < kTile; k += kTileRows) {
      const int64_t row = row0 + x, column = column0 + k;
      if (row < tiling.rows && column < tiling.columns) {
        values[k * (kTile + 1) + x] = source[row * row_step + column * stride];
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int k = y; k < kTile; k += kTileRows) {
      const int64_t row = row0 + k, column = column0 + x;
      if (row < tiling.rows && column < tiling.columns) {
        put_element(work, values[x * (kTile + 1) + k],
                    destination + row * row_destination + column);
      }
    }
  });
}

void issue(Stream& stream, std::string_view name, const Work& work) {
  // If no dimension is denser than the last one, reads along the last dimension coalesce best, and
  // tiles would only add a barrier.
  const FoldedSource& folded = work.folded;
  if (!is_denser_across(folded)) {
    const int64_t blocks = blocks_for(work.numel);
    if (blocks > kMostBlocks) refuse_blocks(name, blocks);
    launch(stream, name, strided_kernel, blocks, kBlockThreads, work);
    return;
  }
  Tiling tiling{};
  tiling.last = folded.dims - 1;
  tiling.across = closest_dim(folded);
  tiling.rows = folded.sizes[tiling.across];
  tiling.columns = folded.sizes[tiling.last];
  tiling.row_tiles = (tiling.rows + kTile - 1) / kTile;
  tiling.column_tiles = (tiling.columns + kTile - 1) / kTile;
  const int64_t blocks =
      work.numel / (tiling.rows * tiling.columns) * tiling.row_tiles * tiling.column_tiles;
  if (blocks > kMostBlocks) refuse_blocks(name, blocks);
  launch(stream, name, transpose_kernel, blocks, kBlockThreads, work, tiling);
}

// Returns true if the kernel for contiguous runs, which is faster than the strided kernels, can
// process the source.
bool is_contiguous(const FoldedSource& folded) {
  return folded.dims == 1 && folded.strides[0] == 1;
}

}  // namespace

void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale) {
  const FoldedSource folded = fold(source);
  if (is_contiguous(folded)) {
    const CastRun run{source.data, destination, source.numel(), source.dtype, destination_dtype};
    return cast_pack(stream, {&run, 1}, scale);
  }
  const bool copies = is_copy(source.dtype, destination_dtype, scale);
  issue(stream, "cast_pack_strided",
        {.folded = folded,
         .source = source.data,
         .destination = destination,
         .numel = source.numel(),
         .scale = scale,
         .from = source.dtype,
         .to = destination_dtype,
         .adds = false,
         .copied_bytes = copies ? static_cast<int32_t>(size_of(source.dtype)) : 0});
}

void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale) {
  const FoldedSource folded = fold(source);
  if (is_contiguous(folded)) {
    const AccumulateRun run{source.data, destination, source.numel(), source.dtype,
                            destination_dtype};
    return accumulate(stream, {&run, 1}, scale);
  }
  issue(stream, "accumulate_strided",
        {.folded = folded,
         .source = source.data,
         .destination = destination,
         .numel = source.numel(),
         .scale = scale,
         .from = source.dtype,
         .to = destination_dtype,
         .adds = true,
         .copied_bytes = 0});
}

void load_strided() {
  load("cast_pack_strided", strided_kernel);
  load("cast_pack_strided by tiles", transpose_kernel);
}

}  // namespace fsdp::kernels::cuda
