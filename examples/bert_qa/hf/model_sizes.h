// Checks that a configuration's sizes are those of the weights in the same folder.
#pragma once

#include <fsdp/stored_weights.h>

#include "models/bert/config.h"

namespace bert_qa {

// Checks the tensors whose shapes show the sizes, and the last layer. Otherwise a configuration
// with larger sizes would allocate memory before load_weights refuses it. load_weights checks that
// all tensors exist.
// Errors: IoError kCorruptData with the tensor and both shapes.
void check_sizes(const bert::Config& config, const fsdp::StoredWeights& weights);

}  // namespace bert_qa
