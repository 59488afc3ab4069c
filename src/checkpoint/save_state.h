// Writes a checkpoint while all ranks wait.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/publication.h"
#include "checkpoint/training_state_parts.h"
#include "io/disk.h"

namespace fsdp {

inline constexpr std::string_view kWritingCheckpoint = "writing the checkpoint";

// Does the work of try_to_save (training_state.h), through `disk`.
Outcome save_state(TrainingState::Parts& state, const SaveTarget& target,
                   const SaveStateOptions& options, Disk& disk);

// Returns this rank's parts of the state that a save with these options writes, after it has
// prepared all objects. Collective.
// Errors: StateError if an object was not added, or cannot be saved now.
std::vector<StatePart> parts_for_save(TrainingState::Parts& state, const SaveStateOptions& options);
// Warns on rank 0 if the checkpoint that was saved is not finite.
void warn_if_not_finite(const Mesh& mesh, const SaveTarget& target, int64_t step, bool finite);

}  // namespace fsdp
