// One writer a folder: a lock that goes with its process, however that dies.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace bert_qa {

// Holds FOLDER/NAME locked (flock) and takes the file away at the end. Of a process that was killed
// the unlocked file stays, which the next holder takes over. Move-only.
class FolderLock {
 public:
  // Errors: IoError kCannotCreate if the file cannot be made, or if another process holds it, which
  //         is then named.
  FolderLock(const std::filesystem::path& folder, const std::string& name);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

  // What a user should be told where the file system has no locks: nothing is held then.
  const std::optional<std::string>& note() const { return note_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::optional<std::string> note_;
};

}  // namespace bert_qa
