// Trains a plain model by an engine whose units a policy chose, on thread ranks, and plainly, as
// the mean over the ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "policy/support/plain_models.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {

struct PolicyResult {
  std::vector<float> losses;  // rank 0's
  std::map<std::string, at::Tensor> parameters;
  std::map<std::string, at::Tensor> buffers;  // rank 0's
  std::vector<std::string> events;            // of the last step, rank 0's; equal on all ranks
};

inline constexpr int kPolicySteps = 3;

// Runs one rank. Parameters are whole on all ranks.
PolicyResult train_rank(const PlainModel& model, const Mesh& mesh, Options options);
PolicyResult train_by_policy(const PlainModel& model, const MeshShape& shape, Options options);
// Trains plainly. If param_dtype is set, parameters without statistics are cast from fp32 values
// for each step, and so are floating inputs.
PolicyResult train_plainly(const PlainModel& model, const MeshShape& shape, bool by_groups,
                           std::optional<at::ScalarType> param_dtype);
// Returns the first that differs in a bit: "losses", a parameter's name or a buffer's; empty if
// none does.
std::string first_difference(const PolicyResult& sharded, const PolicyResult& plain);

}  // namespace fsdp::testing
