// Computes the size of a checkpoint before it is written.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/state_part.h"
#include "fsdp/checkpoint_options.h"

namespace fsdp {

// Returns the size of a checkpoint of `world_size` ranks that has these tensors. `parts` are this
// rank's. Reads no data of them.
CheckpointSize checkpoint_size(const std::vector<StatePart>& parts, int64_t world_size);

}  // namespace fsdp
