// Twenty steps of the demo's model: sharded over the ranks of a mesh, and plain.
#pragma once

#include <fsdp/mesh.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

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
                          ParityOptimizer optimizer, bool map_shards = true);
// On the batches of `world` ranks, whose gradients it averages in rank order.
TrainedBert train_plain(int world, const std::filesystem::path& model, ParityOptimizer optimizer);

// The bits of every loss and of every parameter, a line each: equal texts, equal bits.
std::string bits_of(const TrainedBert& trained);

}  // namespace fsdp::testing
