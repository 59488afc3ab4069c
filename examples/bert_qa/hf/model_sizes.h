// Whether a configuration's sizes are those of the weights beside it.
#pragma once

#include <fsdp/stored_weights.h>

#include "models/bert/config.h"

namespace bert_qa {

// Looks at the tensors whose shapes show the sizes, and at the last layer: what a configuration
// claims beyond them would be allocated before a single weight is loaded. That all tensors are
// there is load_weights' to say.
// Errors: IoError kCorruptData with the tensor and both shapes.
void check_sizes(const bert::Config& config, const fsdp::StoredWeights& weights);

}  // namespace bert_qa
