// Limits that a container, or another control group, sets for this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace fsdp {

// The lowest limits of the group and of the groups that contain it; empty: no limit.
struct CgroupLimits {
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t>
      free_bytes;               // of memory_bytes; file caches that are not in use count as free
  std::optional<double> cores;  // seconds of processor time per second
};

// Returns the limits of this process.
CgroupLimits read_cgroup_limits();
// Returns the limits of another system: `root` is /sys/fs/cgroup (version 2, or a folder for each
// controller of version 1), and `groups` the text of /proc/self/cgroup.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root, std::string_view groups);

}  // namespace fsdp
