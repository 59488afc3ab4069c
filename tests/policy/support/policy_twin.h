// Trains a plain model twice: by an engine on thread ranks whose units a policy chose, and without
// an engine, as the mean over the ranks.
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

// Trains on one rank. The result has whole parameters on all ranks.
PolicyResult train_rank(const PlainModel& model, const Mesh& mesh, Options options);
PolicyResult train_by_policy(const PlainModel& model, const MeshShape& shape, Options options);
// Trains without an engine. If param_dtype is set, each step casts floating inputs and the
// parameters that have no statistics from their fp32 values.
PolicyResult train_plainly(const PlainModel& model, const MeshShape& shape, bool by_groups,
                           std::optional<at::ScalarType> param_dtype);
// Returns the name of the first item with a different bit: "losses", a parameter or a buffer.
// Returns an empty string if all bits are equal.
std::string first_difference(const PolicyResult& sharded, const PolicyResult& plain);

}  // namespace fsdp::testing
