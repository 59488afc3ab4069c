// The files of stored weights, for readers of their bytes.
#pragma once

#include <fsdp/stored_weights.h>

#include <vector>

#include "io/weights_file.h"

namespace fsdp {

// Lifetime: the files live as long as `weights`.
const std::vector<const WeightsFile*>& files_of(const StoredWeights& weights);

}  // namespace fsdp
