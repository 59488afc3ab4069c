// Copies that bypass the caches, for results that do not fit there anyway: the old contents of the
// destination are not fetched first, and no other data is evicted.
#pragma once

#include <cstdint>

namespace fsdp {

// The least number of bytes, over all ranks of a host, for which streaming is worth it. Below, the
// next reader finds the result in a cache (measured: docs/performance.md).
inline constexpr int64_t kStreamFromBytes = int64_t{32} << 20;

// Copies as memcpy does; does nothing if `to` is `from`.
// Ordering: other threads and processes may see the bytes late until finish_streaming().
void copy_streaming(void* to, const void* from, int64_t bytes);
// Orders this thread's streamed writes before all that it stores from now on.
void finish_streaming();

}  // namespace fsdp
