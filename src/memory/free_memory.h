// Reads the host's free memory.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

// Returns the number of bytes that programs can allocate without swapping, as the system estimates
// it. The result is at most the memory that the container has left. It is empty if the system
// provides no estimate.
std::optional<int64_t> free_host_bytes();

}  // namespace fsdp
