// A mesh of one real rank and others that are imagined, on the real one's device.
#pragma once

#include <fsdp/mesh.h>

namespace gpu_probe {

// Rank 0 of `count`: nothing is moved, so that values mean nothing, and the engine does all that it
// does with so many ranks.
fsdp::Mesh imagined_ranks(const fsdp::Mesh& alone, int count);

}  // namespace gpu_probe
