// Makes thread ranks. Each rank has its own device, which checks the order of the rank's work.
#pragma once

#include <memory>
#include <vector>

#include "comm/mesh_parts.h"
#include "simulator/checked_device.h"

namespace fsdp::testing {

struct CheckedRank {
  std::unique_ptr<CheckedDevice> device;  // first, hence destroyed last
  Mesh mesh;
};

// Returns ranks as Mesh::local does. Their collectives report which bytes of their rank they read
// and write.
std::vector<CheckedRank> checked_ranks(int world_size, const MeshOptions& options = {});
// Returns checked ranks for `threads`, the parts of a mesh of host threads, by rank.
std::vector<CheckedRank> checked_ranks(std::vector<MeshParts> threads);

}  // namespace fsdp::testing
