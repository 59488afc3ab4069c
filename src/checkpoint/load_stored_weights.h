// load_weights from files that are open already, for a caller that has looked into them.
#pragma once

#include <fsdp/checkpoint.h>

#include "io/stored_weights.h"

namespace fsdp {

// As load_weights of a path.
LoadReport load_weights(Engine& engine, const StoredWeights& weights,
                        const LoadOptions& options = {});

}  // namespace fsdp
