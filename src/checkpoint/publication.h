// Makes the manifest of a checkpoint, and gives the checkpoint's folder its final name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/training_state_parts.h"
#include "io/checkpoint_manifest.h"
#include "io/disk.h"

namespace fsdp {

// The folder of a checkpoint that is saved. If `replaces`, a folder with this name exists; it is
// removed after the new folder has been renamed to this name. Otherwise no folder may have this
// name.
struct SaveTarget {
  std::filesystem::path folder;
  bool replaces = false;

  // Returns the folder in which this folder is.
  std::filesystem::path parent() const;
};

// Returns the name of temporary folders for `folder`, without their unique end: ".step-1.tmp.".
std::string temporary_prefix(const std::filesystem::path& folder);
// Returns the temporary folder of the next save to `folder`. The result is equal on all ranks.
std::filesystem::path next_temporary(TrainingState::Parts& state,
                                     const std::filesystem::path& folder);

// Throws IoError kCannotCreate if the target must not exist but does.
void require_free_name(const SaveTarget& target);
// Makes the temporary folder that all ranks write into. Every rank calls this function, and the
// first call makes the folder. Errors: IoError kCannotCreate.
void make_temporary(Disk& disk, const std::filesystem::path& folder);
// Throws IoError kIoError if the disk has less than `bytes` free. Each rank asks for its own shard
// before the first byte, so the space that other ranks have reserved meanwhile does not count
// twice.
void require_space(const std::filesystem::path& folder, int64_t bytes);

// Returns the manifest of a checkpoint of the present state, without files and intervals. `parts`
// are the parts that are saved.
CheckpointManifest begin_manifest(const TrainingState::Parts& state,
                                  const std::vector<StatePart>& parts,
                                  const SaveStateOptions& options);
// Adds the files and intervals of the shards that the ranks have written, writes the manifest, and
// gives the folder its final name. A shard whose metadata say so (kFinite) makes the checkpoint
// not finite. Returns CheckpointManifest::finite. Called on rank 0, after all ranks have written.
// `host` is the name of rank 0's host, for messages.
// Errors: IoError kCannotCreate, kIoError; IoError kConfiguration if a rank's shard is
//   not in the folder. After an error, the target is as it was before.
bool publish(Disk& disk, CheckpointManifest manifest, const std::filesystem::path& temporary,
             const SaveTarget& target, const std::string& host);

// Returns the bytes of the tensors of a checkpoint, over all ranks, without headers.
int64_t checkpoint_bytes(const std::vector<StatePart>& parts);

}  // namespace fsdp
