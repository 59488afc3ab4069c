// Computes digests of memory, with which the engine detects writes by code outside the engine.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// The number of scratch words that the digest of one run of memory needs. Each word holds the sum
// over one part of the run.
inline constexpr int64_t kDigestParts = 512;

// A run of memory to digest. Two different runs have the same digest with a probability of about
// 2^-64. The digest is not cryptographic. `data` and `parts` are device memory. `digest` is device
// memory or pinned host memory.
struct DigestRun {
  const void* data = nullptr;
  int64_t bytes = 0;  // a multiple of 8
  uint64_t* digest = nullptr;
  uint64_t* parts = nullptr;  // scratch of kDigestParts words
};

// Writes the digest of each run. w_i are the run's words of 64 bits, and K = 0x9e3779b97f4a7c15:
//   m = (w_i ^ (i + 1)·K)·K      n = (m ^ (m >> 32))·K      digest = sum of n ^ (n >> 32)
// The sum wraps, so its terms can be added in any order and by many threads at a time. The call
// copies `runs`, so the caller may free it.
// Errors: InvalidArgument if a size is not a multiple of 8.
void digest(Stream& stream, std::span<const DigestRun> runs);

}  // namespace fsdp::kernels
