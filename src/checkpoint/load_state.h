// Loads a checkpoint.
#pragma once

#include <filesystem>

#include "checkpoint/training_state_parts.h"

namespace fsdp {

// Does the work of load (training_state.h) for callers that can go on with another checkpoint.
// `changed` is false if the load failed before it changed anything.
struct LoadedState {
  Outcome outcome;
  LoadStateReport report;
  bool changed = false;
};
LoadedState load_state(TrainingState::Parts& state, const std::filesystem::path& folder,
                       const LoadStateOptions& options);

}  // namespace fsdp
