// MemoryFolder: a folder in memory that lasts as long as the launcher.
#pragma once

#include <filesystem>

#include "base/descriptor.h"

namespace fsdp {

// A new folder in /dev/shm, readable by this user only. Ranks keep copies of their state in it over
// a restart. A process that this object starts removes the folder when the launcher has ended, also
// after SIGKILL.
class MemoryFolder {
 public:
  // If the system has no /dev/shm, or if no folder can be created in it, path() is empty.
  MemoryFolder();
  ~MemoryFolder();  // removes the folder
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor alive_;  // of the process that removes the folder
};

}  // namespace fsdp
