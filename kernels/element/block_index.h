// Maps a GPU's block, thread and iteration to the index of an element of a long run. The device and
// the host, which counts the blocks, share this mapping.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"

namespace fsdp::kernels {

inline constexpr int kBlockThreads = 256;
inline constexpr int64_t kBlockNumel = 4096;
// The largest number of blocks in a launch: CUDA's limit for the first dimension of a grid.
inline constexpr int64_t kMostBlocks = 0x7fffffff;

// Returns the first of the `width` neighbouring elements that a thread processes in an iteration.
// Consecutive threads access consecutive elements at the same time, so accesses coalesce. The
// iterations are 0 to kBlockNumel / (kBlockThreads · width) - 1. The index has 64 bits, because a
// run of a large model has more than 2^31 elements.
FSDP_ELEMENT int64_t element_of(int64_t block, int thread, int iteration, int width) {
  return block * kBlockNumel + (int64_t{iteration} * kBlockThreads + thread) * width;
}

FSDP_ELEMENT int64_t blocks_for(int64_t numel) { return (numel + kBlockNumel - 1) / kBlockNumel; }

// The number of blocks of kernels/grad_norm.h that one thread block reduces. Eight lanes share one
// block, because the order of summation requires it. The blocks of a thread block are consecutive.
inline constexpr int kNormBlocksTogether = kBlockThreads / 8;

FSDP_ELEMENT int64_t norm_block_of(int64_t block, int thread) {
  return block * kNormBlocksTogether + thread / 8;
}
FSDP_ELEMENT int64_t norm_element_of(int64_t norm_block, int thread, int iteration) {
  return norm_block * 1024 + iteration * 8 + thread % 8;
}

}  // namespace fsdp::kernels
