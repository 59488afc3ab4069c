// Twenty steps of the demo's model: sharded over the ranks of a mesh, and plain.
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

// Every rank calls it; the result is rank 0's (empty on others). `model` is a Hugging Face folder.
TrainedBert train_sharded(const Mesh& mesh, const std::filesystem::path& model,
                          ParityOptimizer optimizer, Options options = {});
// On the batches of a mesh's ranks, whose gradients it averages in rank order: within groups, then
// over the groups.
TrainedBert train_plain(const MeshShape& shape, const std::filesystem::path& model,
                        ParityOptimizer optimizer);

// The bits of every loss and of every parameter, a line each: equal texts, equal bits.
std::string bits_of(const TrainedBert& trained);

}  // namespace fsdp::testing
