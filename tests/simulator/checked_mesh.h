// Threads as ranks whose device checks the order of their work, each rank by itself.
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

// As Mesh::local. Collectives tell which memory of the rank they read and write.
std::vector<CheckedRank> checked_ranks(int world_size, const MeshOptions& options = {});
// Of a mesh of threads of the host, by rank.
std::vector<CheckedRank> checked_ranks(std::vector<MeshParts> threads);

}  // namespace fsdp::testing
