// Loops with the memory traffic of kernels, which only add. They are a bound for kernels_probe.
#pragma once

#include <cstdint>
#include <iterator>
#include <numeric>

#include "kernels/cpu/target_clones.h"

namespace fsdp {

constexpr int64_t kNumel = int64_t{1} << 24;  // 64 MiB per array, which no cache can hold

// Reads four arrays and writes three of them, like AdamW. If kCopies is true, also writes a fifth,
// narrow array.
template <bool kCopies>
FSDP_TARGET_CLONES void stream_adamw(float* __restrict a, const float* __restrict b,
                                     float* __restrict c, float* __restrict d,
                                     uint16_t* __restrict e = nullptr) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kNumel; ++i) {
    const float x = b[i];
    a[i] += x;
    c[i] += x;
    d[i] += x;
    if constexpr (kCopies) e[i] = static_cast<uint16_t>(i);
  }
}

// Reads two arrays and writes one of them.
FSDP_TARGET_CLONES
inline void stream_three(float* __restrict a, const float* __restrict b) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kNumel; ++i) a[i] += b[i];
}

// Reads three arrays and writes two of them.
FSDP_TARGET_CLONES
inline void stream_five(float* __restrict a, const float* __restrict b, float* __restrict c) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kNumel; ++i) {
    const float x = b[i];
    a[i] += x;
    c[i] += x;
  }
}

// Only reads an array. It has 64 sums, so that no addition waits for another.
FSDP_TARGET_CLONES
inline uint32_t stream_one(const uint32_t* a) {
  constexpr int64_t kSums = 64;
  uint32_t sums[kSums] = {};
  for (int64_t i = 0; i < kNumel; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += a[i + j];
  }
  return std::accumulate(std::begin(sums), std::end(sums), 0U);
}

}  // namespace fsdp
