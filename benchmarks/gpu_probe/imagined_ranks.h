// Makes a mesh of one real rank and simulated peers on its device.
#pragma once

#include <fsdp/mesh.h>

namespace gpu_probe {

// Returns rank 0 of `count` ranks. The engine works as with that many ranks. The collectives move
// no data, so values are meaningless.
fsdp::Mesh imagined_ranks(const fsdp::Mesh& alone, int count);

}  // namespace gpu_probe
