// Loads the checkpoint from which a run resumes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "checkpoint/training_state_parts.h"
#include "fsdp/checkpoint_options.h"

namespace fsdp {

inline constexpr std::string_view kOpening = "opening the folder of the checkpoints";

// Loads the checkpoint that CheckpointOptions::resume chooses, and passes a note about it to the
// program. Returns the checkpoint's step, or nothing if no checkpoint is loaded. Collective.
// Errors: those of Checkpoints::resume, except for the room on the disk.
std::optional<int64_t> load_chosen(TrainingState::Parts& state, const CheckpointOptions& options);

}  // namespace fsdp
