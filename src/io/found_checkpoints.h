// FoundCheckpoints: the checkpoints inside a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "io/checkpoint_manifest.h"

namespace fsdp {

// A checkpoint whose manifest was read.
struct FoundCheckpoint {
  std::filesystem::path folder;
  std::string run;
  int64_t sequence = 0;
  int64_t step = 0;
  std::string time;
  bool finite = true;
  int64_t world_size = 1;
  std::string strategy;  // empty if the conditions of the manifest do not have it
  std::vector<ManifestFile> files;
};

// The checkpoints inside a folder, by their manifests. Other files, links, and folders whose name
// is not step-NNNNNNNN are ignored.
struct FoundCheckpoints {
  // The checkpoints of the run that wrote the latest checkpoint (by time), sorted by decreasing
  // sequence.
  std::vector<FoundCheckpoint> of_run;
  std::vector<FoundCheckpoint> of_other_runs;
  // Folders whose manifest is damaged, missing or unreadable, with the error.
  std::vector<std::pair<std::filesystem::path, Error>> damaged;
};

// Reads all manifests. A folder that does not exist has no checkpoints. Errors: IoError kIoError if
// the folder cannot be read.
FoundCheckpoints find_checkpoints(const std::filesystem::path& folder);

// The retention rule. Returns the oldest checkpoints of `run` beyond `limit` (2 or more), newest
// first. Checkpoints with infinite or NaN values do not count towards the limit. Such a checkpoint
// is returned if it is older than the oldest finite checkpoint that is kept. Checkpoints whose
// manifest is damaged, missing or of another run are not returned.
std::vector<FoundCheckpoint> checkpoints_beyond(int64_t limit, const std::string& run,
                                                FoundCheckpoints found);

// Returns the folder of a step: "FOLDER/step-00001200".
std::filesystem::path folder_of_step(const std::filesystem::path& folder, int64_t step);
// Returns true for "step-" and a number of at least eight digits.
bool is_checkpoint_name(std::string_view name);

// Returns true if `folder` is a folder that is named like a checkpoint or that contains a manifest.
bool is_checkpoint_folder(const std::filesystem::path& folder);

// Returns the folders inside `folder` that are no links, in any order. Errors: IoError kIoError if
// the folder cannot be read. A folder that does not exist has none.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder);

}  // namespace fsdp
