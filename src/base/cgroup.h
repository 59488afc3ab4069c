// What the container, or another control group around this process, may use of the machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace fsdp {

// The lowest limits of the group and of those that it is in; empty: none.
struct CgroupLimits {
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t>
      free_bytes;               // of memory_bytes; caches of files that are not in use are free
  std::optional<double> cores;  // processor time for each second
};

CgroupLimits read_cgroup_limits();
// The same of another system: `root` is /sys/fs/cgroup (version 2, or a folder a controller), and
// `groups` the text of /proc/self/cgroup.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root, std::string_view groups);

}  // namespace fsdp
