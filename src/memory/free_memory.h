// Reads the host's free memory.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

// Returns the number of bytes that programs can allocate without swapping, as the system estimates
// it. In a container, the result is at most the rest of the container's memory limit. The result is
// empty if the system provides no estimate.
std::optional<int64_t> free_host_bytes();

}  // namespace fsdp
