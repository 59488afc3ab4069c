// Computes digests of memory, so that the engine detects writes that did not go through it.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// Number of scratch words that a run needs, one for the sum of each of its parts.
inline constexpr int64_t kDigestParts = 512;

// A run of memory to digest. Two runs that differ have the same digest with a probability of about
// 2^-64, but the digest is not cryptographic. `data` and `parts` are device memory; `digest` points
// at device memory or at pinned host memory.
struct DigestRun {
  const void* data = nullptr;
  int64_t bytes = 0;  // a multiple of 8
  uint64_t* digest = nullptr;
  uint64_t* parts = nullptr;  // scratch of kDigestParts words
};

// Writes the digest of each run. With the words w_i of 64 bits, and K = 0x9e3779b97f4a7c15:
//   m = (w_i ^ (i + 1)·K)·K      n = (m ^ (m >> 32))·K      digest = sum of n ^ (n >> 32)
// The sum wraps, so the order of its terms does not matter and many threads can add them at once.
// The call copies the table. Errors: InvalidArgument for a size that is not a multiple of 8.
void digest(Stream& stream, std::span<const DigestRun> runs);

}  // namespace fsdp::kernels
