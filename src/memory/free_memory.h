// The host's free memory.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

// Returns the bytes that programs can allocate without swapping, by the system's estimate, and at
// most what the container has left; empty if the system has no estimate.
std::optional<int64_t> free_host_bytes();

}  // namespace fsdp
