// CheckpointFolder: the folder with the checkpoints of a job. Used by rank 0 only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint_manifest.h"
#include "io/disk.h"
#include "io/folder_lock.h"

namespace fsdp {

// A checkpoint whose manifest was read.
struct FoundCheckpoint {
  std::filesystem::path folder;
  std::string run;
  int64_t sequence = 0;
  int64_t step = 0;
  std::string time;
  bool finite = true;
};

// The checkpoints under a folder, by their manifests. Other files, links, and folders whose name is
// not step-NNNNNNNN are ignored.
struct FoundCheckpoints {
  // The checkpoints of the run that wrote last, newest first (by sequence).
  std::vector<FoundCheckpoint> of_run;
  std::vector<FoundCheckpoint> of_other_runs;
  // Folders whose manifest is damaged or missing, with the error.
  std::vector<std::pair<std::filesystem::path, std::string>> damaged;
};

// Reads all manifests. Errors: IoError kIoError if the folder cannot be read. A folder that does
// not exist has no checkpoints.
FoundCheckpoints find_checkpoints(const std::filesystem::path& folder);

// Returns the folder of a step: "FOLDER/step-00001200".
std::filesystem::path folder_of_step(const std::filesystem::path& folder, int64_t step);

class CheckpointFolder {
 public:
  // Creates the folder if necessary, locks it, and removes temporary folders of dead jobs.
  // Errors: those of FolderLock; IoError kCannotCreate.
  CheckpointFolder(std::filesystem::path folder, Disk& disk);

  // Messages about the removed folders and the lock, one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  // Removes the oldest checkpoints of `run` beyond `limit` (2 or more). Checkpoints that are not
  // finite are not counted; they are removed with the finite ones that follow them. Only whole
  // checkpoints of this run are removed. Returns the errors of removals that failed.
  std::vector<std::string> prune(const std::string& run, int64_t limit);

 private:
  const std::filesystem::path folder_;
  Disk& disk_;
  std::optional<FolderLock> lock_;
  std::vector<std::string> notes_;
};

}  // namespace fsdp
