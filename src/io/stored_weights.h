// Provides the files of StoredWeights to code that reads their bytes.
#pragma once

#include <fsdp/stored_weights.h>

#include <vector>

#include "io/weights_file.h"

namespace fsdp {

// Returns the files that `weights` has opened. The pointers are valid as long as `weights` exists.
const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights);

}  // namespace fsdp
