#include "planner/free_memory.h"

#include <fstream>
#include <string>

namespace fsdp {

std::optional<int64_t> free_host_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
    std::getline(file, name);
  }
  return std::nullopt;
}

}  // namespace fsdp
