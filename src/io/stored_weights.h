// Access to the files of StoredWeights, for code that reads their bytes.
#pragma once

#include <fsdp/stored_weights.h>

#include <vector>

#include "io/weights_file.h"

namespace fsdp {

// Returns the files, which live as long as `weights`.
const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights);

}  // namespace fsdp
