#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The names of a control group's files. The names differ between cgroup versions 1 and 2.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* cached;  // key in memory.stat
};
constexpr MemoryFiles kMemoryFiles1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file"};
constexpr MemoryFiles kMemoryFiles2{"memory.max", "memory.current", "inactive_file"};

// Returns the first number in a file, or nothing if the file is missing or contains "max".
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// Returns the value `wanted` of memory.stat, or 0 if it is missing.
int64_t cached_bytes(const fs::path& folder, std::string_view wanted) {
  std::ifstream file(folder / "memory.stat");
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == wanted) return value;
  }
  return 0;
}

template <class Number>
void take_lower(std::optional<Number>& lowest, Number value) {
  lowest = std::min(lowest.value_or(value), value);
}

void read_memory(const fs::path& folder, const MemoryFiles& files, CgroupLimits& limits) {
  constexpr int64_t kNone = int64_t{1} << 60;  // version 1 writes about 2^63 for "no limit"
  const std::optional<int64_t> limit = number_in(folder / files.limit);
  if (!limit || *limit >= kNone) return;
  take_lower(limits.memory_bytes, *limit);
  const int64_t used = number_in(folder / files.used).value_or(0);
  // If memory is short, the kernel drops inactive file caches. So these caches do not count as
  // used.
  const int64_t held = std::max<int64_t>(0, used - cached_bytes(folder, files.cached));
  take_lower(limits.free_bytes, std::max<int64_t>(0, *limit - held));
}

void take_cores(int64_t quota_us, int64_t period_us, CgroupLimits& limits) {
  if (quota_us <= 0 || period_us <= 0) return;
  take_lower(limits.cores, static_cast<double>(quota_us) / static_cast<double>(period_us));
}

// Reads the CPU quota in the formats of both cgroup versions. Only the files of one version exist.
void read_cores(const fs::path& folder, CgroupLimits& limits) {
  std::ifstream both(folder / "cpu.max");
  int64_t quota = 0, period = 0;
  if (both >> quota >> period) take_cores(quota, period, limits);
  take_cores(number_in(folder / "cpu.cfs_quota_us").value_or(0),
             number_in(folder / "cpu.cfs_period_us").value_or(0), limits);
}

// Reads the limits in `root`, in `path` below `root`, and in all folders between them, because each
// folder may set a lower limit. In a container, `root` is the container's own group, but with
// version 1 `path` is the path outside the container. So folders may be missing; they set no limit.
void read_groups(const fs::path& root, std::string_view path, CgroupLimits& limits) {
  fs::path folder = root;
  const auto read = [&] {
    read_memory(folder, kMemoryFiles1, limits);
    read_memory(folder, kMemoryFiles2, limits);
    read_cores(folder, limits);
  };
  read();
  for (const fs::path& part : fs::path(path).relative_path()) {
    folder /= part;
    read();
  }
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& root, std::string_view groups) {
  CgroupLimits limits;
  std::istringstream lines{std::string(groups)};
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/docker/1f", "0::/user.slice"
    const size_t name = line.find(':') + 1, path = line.find(':', name) + 1;
    if (name == 0 || path == 0) continue;
    // In version 1 each list of controllers has its own folder below `root`. In version 2 the list
    // is empty, and `root` is the only hierarchy.
    const std::string controllers = line.substr(name, path - 1 - name);
    read_groups(root / controllers, std::string_view(line).substr(path), limits);
  }
  return limits;
}

CgroupLimits read_cgroup_limits() {
  std::ifstream file("/proc/self/cgroup");
  const std::string groups{std::istreambuf_iterator<char>(file), {}};
  return read_cgroup_limits("/sys/fs/cgroup", groups);
}

}  // namespace fsdp
