// Trains twenty steps of the demo's model: sharded over the ranks of a mesh, and plain.
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/options.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "comm/mesh_parts.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

enum class ParityOptimizer { kSgd, kAdamW };

struct TrainedBert {
  std::vector<float> losses;                     // rank 0's, one a step
  std::map<std::string, at::Tensor> parameters;  // whole, after the last step
  int64_t gathers = 0;                           // in all steps
};

// Trains on this rank; collective. Returns the result on rank 0, empty on others. `model` is a
// Hugging Face folder.
TrainedBert train_sharded(const Mesh& mesh, const std::filesystem::path& model,
                          ParityOptimizer optimizer, Options options = {});
// Trains on the batches of a mesh's ranks, and averages their gradients in rank order: within
// groups, then over the groups.
TrainedBert train_plain(const MeshShape& shape, const std::filesystem::path& model,
                        ParityOptimizer optimizer);

// Returns the bits of every loss and of every parameter, one line each: equal texts mean equal
// bits.
std::string bits_of(const TrainedBert& trained);

}  // namespace fsdp::testing
