// Whether a configuration's sizes are those of the weights beside it.
#pragma once

#include "data/model_folder.h"

namespace fsdp {

// Looks at the tensors whose shapes show the sizes, and at the last layer: what a configuration
// claims beyond them would be allocated before a single weight is loaded. That all tensors are
// there is match_weights' to say. Errors: IoError kCorruptData with the tensor and both shapes.
void check_sizes(const ModelConfig& config, const ModelFolder& folder);

}  // namespace fsdp
