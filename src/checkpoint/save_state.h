// Writes a checkpoint.
#pragma once

#include <filesystem>

#include "checkpoint/training_state_parts.h"
#include "io/disk.h"

namespace fsdp {

// Does the work of try_to_save (training_state.h), through `disk`. If `replaces`, a folder with the
// final name exists; it is removed after the new folder has been renamed to this name. Otherwise no
// folder may have the final name.
struct SaveTarget {
  std::filesystem::path folder;
  bool replaces = false;
};
Outcome save_state(TrainingState::Parts& state, const SaveTarget& target,
                   const SaveStateOptions& options, Disk& disk);

// Returns the bytes that are free on the disk of a folder. Returns nothing if the system does not
// know.
std::optional<int64_t> available_bytes(const std::filesystem::path& folder);

// Returns the bytes of the tensors of a checkpoint, over all ranks, without headers.
int64_t checkpoint_bytes(const std::vector<StatePart>& parts);

// Removes a folder of files. Best effort: errors are ignored.
void remove_folder(Disk& disk, const std::filesystem::path& folder) noexcept;
// Returns the name of temporary folders for `folder`, without their unique end: ".step-1.tmp.".
std::string temporary_prefix(const std::filesystem::path& folder);

}  // namespace fsdp
