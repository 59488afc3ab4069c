// What this host has left.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

// Returns the bytes that programs can get without anything being swapped out, by the system's
// estimate, and no more than the container has left; empty where the system has no estimate.
std::optional<int64_t> free_host_bytes();

}  // namespace fsdp
