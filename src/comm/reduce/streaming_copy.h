// Copies past the caches, for results that do not fit there anyway: the old contents of the
// destination are not fetched first, and nothing else is evicted.
#pragma once

#include <cstdint>

namespace fsdp {

// Worth it where all ranks of a host together write at least this much. Below, the next reader
// finds the result in a cache (measured: docs/performance.md).
inline constexpr int64_t kStreamFromBytes = int64_t{32} << 20;

// Like memcpy; nothing is done if `to` is `from`.
// Ordering: other threads and processes may see the bytes late until finish_streaming().
void copy_streaming(void* to, const void* from, int64_t bytes);
// Orders what this thread has streamed before all that it stores from now on.
void finish_streaming();

}  // namespace fsdp
