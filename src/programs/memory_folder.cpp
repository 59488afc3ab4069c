#include "memory_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>

#include "side_process.h"

namespace fsdp {
namespace {

void remove_quietly(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace

MemoryFolder::MemoryFolder() {
  std::string name = fmt::format("/dev/shm/fsdp-memory-{}-XXXXXX", getuid());
  if (mkdtemp(name.data()) == nullptr) return;
  alive_ = start_side_process({}, [&](const std::function<void()>& wait) {
    wait();
    remove_quietly(name);
  });
  if (alive_) {
    path_ = name;
  } else {
    remove_quietly(name);
  }
}

MemoryFolder::~MemoryFolder() {
  if (!path_.empty()) remove_quietly(path_);
}

}  // namespace fsdp
