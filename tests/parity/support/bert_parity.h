// Trains the demo's model for twenty steps, sharded over the ranks of a mesh and on one process
// without sharding.
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

// Trains on this rank. Collective. Returns the result on rank 0, and an empty result on other
// ranks. `model` is a Hugging Face folder.
TrainedBert train_sharded(const Mesh& mesh, const std::filesystem::path& model,
                          ParityOptimizer optimizer, Options options = {});
// Trains without an engine on the batches of all ranks of a mesh. Averages their gradients in rank
// order, within groups and then over the groups.
TrainedBert train_plain(const MeshShape& shape, const std::filesystem::path& model,
                        ParityOptimizer optimizer);

// Returns the bits of every loss and every parameter, one line each. Two texts are equal only if
// all bits are equal.
std::string bits_of(const TrainedBert& trained);

}  // namespace fsdp::testing
