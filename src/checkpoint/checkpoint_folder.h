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
  // Removes the oldest checkpoints of `run` beyond `limit` (2 or more). Checkpoints with infinite
  // or NaN values do not count towards the limit. Such a checkpoint is removed if it is older than
  // the oldest finite checkpoint that is kept. Only whole checkpoints of this run are removed.
  // Returns the errors of removals that failed.
  std::vector<std::string> prune(const std::string& run, int64_t limit);

 private:
  const std::filesystem::path folder_;
  Disk& disk_;
  bool is_new_ = false;
  std::optional<FolderLock> lock_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp
