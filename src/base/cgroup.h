// Reads the limits that a container or another control group sets for this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace fsdp {

// The lowest limits of the process's group and of the groups that contain it. Empty: no limit.
struct CgroupLimits {
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t>
      free_bytes;               // free part of memory_bytes; inactive file caches count as free
  std::optional<double> cores;  // CPU quota: seconds of processor time per second
};

// Returns the limits of this process.
CgroupLimits read_cgroup_limits();
// Returns the limits for given files and groups, for tests. `root` is used instead of
// /sys/fs/cgroup. In cgroup version 1, `root` has a folder for each controller. `groups` is the
// text of /proc/self/cgroup.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root, std::string_view groups);

}  // namespace fsdp
