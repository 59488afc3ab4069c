// Checks that the sizes in a configuration match the weights in the same folder.
#pragma once

#include <fsdp/stored_weights.h>

#include "models/bert/config.h"

namespace bert_qa {

// Checks the tensors whose shapes depend on the sizes, and the last layer. Otherwise a
// configuration with larger sizes would allocate memory before load_weights refuses the file.
// load_weights checks later that all tensors exist.
// Errors: IoError kCorruptData, which names the tensor and both shapes.
void check_sizes(const bert::Config& config, const fsdp::StoredWeights& weights);

}  // namespace bert_qa
