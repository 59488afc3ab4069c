// Digests of memory, by which a change is noticed that nobody has told of.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

// Of a run: how many words of scratch it needs, sums of its parts.
inline constexpr int64_t kDigestParts = 512;

// Two runs that differ have the same digest with a chance of about 2^-64; it is no defence against
// whoever means to deceive it. `data` and `parts` are device memory, *digest that or pinned.
struct DigestRun {
  const void* data = nullptr;
  int64_t bytes = 0;  // a multiple of 8
  uint64_t* digest = nullptr;
  uint64_t* parts = nullptr;  // scratch of kDigestParts words
};

// With the words w_i of 64 bits, and K = 0x9e3779b97f4a7c15:
//   m = (w_i ^ (i + 1)·K)·K      n = (m ^ (m >> 32))·K      digest = sum of n ^ (n >> 32)
// The order of the terms does not matter, so that they can be added by many threads at once.
// The table is copied by the call. Errors: InvalidArgument for a size that is no multiple of 8.
void digest(Stream& stream, std::span<const DigestRun> runs);

}  // namespace fsdp::kernels
