// Removes old checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace fsdp {

struct PruneOptions {
  int64_t keep = 2;      // 2 or more
  bool dry_run = false;  // only says what would be removed, and takes no lock
};

// Removes the checkpoints_beyond (found_checkpoints.h) options.keep of the run that saved last.
// Does not remove a checkpoint whose folder has other files. Passes one line to `say` for each
// removed checkpoint, and a summary. Like a job, it first removes unfinished checkpoints.
// Requires: the folder exists.
// Errors: IoError kCannotCreate if a job holds the folder's lock, or if the folder is not writable.
//   IoError kCorruptData, before anything is removed, if files of a kept checkpoint are missing or
//   have a wrong size. IoError kIoError if a checkpoint cannot be read or removed.
void prune_checkpoints(const std::filesystem::path& folder, const PruneOptions& options,
                       const std::function<void(const std::string& line)>& say);

}  // namespace fsdp
