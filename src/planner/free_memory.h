// What this host has left.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

// Bytes that programs can get without anything being swapped out, by the system's estimate; empty
// where it does not tell. Of the whole machine: a container's own limit is not looked at.
std::optional<int64_t> free_host_bytes();

}  // namespace fsdp
