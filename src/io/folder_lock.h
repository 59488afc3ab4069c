// Locks a folder for one writer. The system releases the lock when the process ends, even if it is
// killed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace fsdp {

// A lock on FOLDER/NAME (flock). The destructor removes the file. A killed process leaves the
// unlocked file, and the next holder locks that file. Move-only.
class FolderLock {
 public:
  // Errors: IoError kCannotCreate if the file cannot be created, or if another process holds the
  //   lock. The error then names that process.
  FolderLock(const std::filesystem::path& folder, const std::string& name);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

  // Returns a note for the user if the file system has no locks. In that case no lock is held.
  const std::optional<std::string>& note() const { return note_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::optional<std::string> note_;
};

}  // namespace fsdp
