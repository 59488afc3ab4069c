// Checks every byte of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint_manifest.h"

namespace fsdp {

enum class CheckpointState : uint8_t {
  kWhole,
  kDamaged,
  kUnreadable,  // a file cannot be read, and no damage was found
};

struct CheckedCheckpoint {
  CheckpointState state = CheckpointState::kWhole;
  std::string summary;  // "step-00001200: 2 shards, 1.4 MiB, whole"
};

// Compares all files of a checkpoint with its manifest: each block of each shard, the intervals,
// and the tensor of each interval, which must be in its shard with the same dtype and count. Passes
// one line to `say` for each finding, and for each file that is not part of the checkpoint. Only
// the first damaged block of a shard is a finding.
// Memory: the manifest and the header of one shard, and 16 MiB for each of the two.
CheckedCheckpoint check_checkpoint(const std::filesystem::path& folder,
                                   const std::function<void(const std::string& line)>& say);

// Throws an error for the first file that is missing or has the wrong size. Reads no file.
// Errors: IoError kCorruptData, kIoError.
void check_files(const std::filesystem::path& folder, const std::vector<ManifestFile>& files);

// Returns the sorted names of files and folders in the folder of a checkpoint that are not part of
// the checkpoint. Errors: IoError kIoError if the folder cannot be read.
std::vector<std::string> other_files(const std::filesystem::path& folder,
                                     const std::vector<ManifestFile>& files);

// Returns the bytes of all files in a folder.
int64_t bytes_in(const std::filesystem::path& folder);
// Returns the name of the folder to which a path leads: "step-00001200" for "out/step-00001200/",
// and also for "." if this folder is the working directory.
std::string name_of_folder(const std::filesystem::path& folder);

}  // namespace fsdp
