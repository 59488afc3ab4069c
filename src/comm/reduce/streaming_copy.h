// Copies that bypass the caches, for results that do not fit into the caches anyway. The old
// contents of the destination are not fetched, and no other data are evicted.
#pragma once

#include <cstdint>

namespace fsdp {

// The number of bytes, over all ranks of a host, from which copy_streaming takes less time than
// memcpy. For fewer bytes the next reader finds the result in a cache (measured:
// docs/performance.md).
inline constexpr int64_t kStreamFromBytes = int64_t{32} << 20;

// Copies like memcpy. Does nothing if `to` equals `from`. Other threads and processes may see the
// bytes only after finish_streaming().
void copy_streaming(void* to, const void* from, int64_t bytes);
// Orders this thread's streamed writes before all its later stores.
void finish_streaming();

}  // namespace fsdp
