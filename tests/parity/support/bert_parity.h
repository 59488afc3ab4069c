// Twenty steps of the demo's model, sharded over the ranks of a mesh and plain on rank 0.
#pragma once

#include <fsdp/mesh.h>

#include <filesystem>
#include <string>

namespace fsdp::testing {

enum class ParityOptimizer { kSgd, kAdamW };

struct ParityReport {
  double loss_difference = 0;  // the largest, relative, of rank 0's losses
  bool losses_bit_equal = true;
  int64_t gathers = 0;          // in twenty steps
  std::string first_different;  // FQN of a parameter whose bits differ at the end; empty: none
};

// Every rank calls it; the report is rank 0's (empty on others). `model` is a Hugging Face folder.
// The plain model averages the gradients of all ranks' batches in rank order.
ParityReport train_sharded_and_plain(const Mesh& mesh, const std::filesystem::path& model,
                                     ParityOptimizer optimizer, bool map_shards = true);

}  // namespace fsdp::testing
