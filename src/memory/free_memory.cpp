#include "memory/free_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/cgroup.h"

namespace fsdp {

std::optional<int64_t> free_host_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) {
      const int64_t bytes = kibibytes * 1024;
      // MemAvailable is the free memory of the whole machine. A container may have less, so the
      // limit of its cgroup is considered, too.
      return std::min(bytes, read_cgroup_limits().free_bytes.value_or(bytes));
    }
    std::getline(file, name);
  }
  return std::nullopt;
}

}  // namespace fsdp
