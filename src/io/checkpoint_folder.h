// CheckpointFolder: the folder with the checkpoints of a job. Used by rank 0 only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/disk.h"
#include "io/folder_lock.h"

namespace fsdp {

class CheckpointFolder {
 public:
  // Creates the folder if necessary, locks it, and removes temporary folders of dead jobs.
  // Errors: those of FolderLock; IoError kCannotCreate.
  CheckpointFolder(std::filesystem::path folder, Disk& disk);
  // Unlocks the folder. If this object has created the folder and it is empty, removes it.
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Messages about the removed folders and the lock, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  // Removes the checkpoints_beyond (found_checkpoints.h) the limit. Returns the errors of removals
  // that failed.
  std::vector<std::string> prune(const std::string& run, int64_t limit);
  // Removes a checkpoint, which must be inside this folder. Returns the error if files remain.
  std::optional<std::string> remove(const std::filesystem::path& checkpoint);

 private:
  const std::filesystem::path folder_;
  Disk& disk_;
  bool is_new_ = false;
  std::optional<FolderLock> lock_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp
