// Which elements of a long run the threads of a GPU work on. The one place where a block, a thread
// and an iteration become an index, for the device and for the host that counts blocks.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"

namespace fsdp::kernels {

inline constexpr int kBlockThreads = 256;
inline constexpr int64_t kBlockNumel = 4096;
// Of a launch: CUDA's limit of a grid's first dimension.
inline constexpr int64_t kMostBlocks = 0x7fffffff;

// The first of the `width` neighbours that a thread works on in an iteration: what threads that
// follow each other touch at the same time follows each other, too. Iterations go from 0 to
// kBlockNumel / (kBlockThreads · width) - 1. 64 bits: a run of a large model has more than 2^31
// elements.
FSDP_ELEMENT int64_t element_of(int64_t block, int thread, int iteration, int width) {
  return block * kBlockNumel + (int64_t{iteration} * kBlockThreads + thread) * width;
}

FSDP_ELEMENT int64_t blocks_for(int64_t numel) { return (numel + kBlockNumel - 1) / kBlockNumel; }

// Of the gradient norm, whose order of summation says who adds what: eight lanes have a block of
// kernels/grad_norm.h, a thread block as many of these as follow each other.
inline constexpr int kNormBlocksTogether = kBlockThreads / 8;

FSDP_ELEMENT int64_t norm_block_of(int64_t block, int thread) {
  return block * kNormBlocksTogether + thread / 8;
}
FSDP_ELEMENT int64_t norm_element_of(int64_t norm_block, int thread, int iteration) {
  return norm_block * 1024 + iteration * 8 + thread % 8;
}

}  // namespace fsdp::kernels
