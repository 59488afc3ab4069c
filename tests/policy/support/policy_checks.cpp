// Defines the checks of policy_twin.h. Programs without doctest's main do not link this file.
#include "policy/support/policy_twin.h"

namespace fsdp::testing {

PolicyResult train_by_policy(const PlainModel& model, const MeshShape& shape, Options options) {
  std::vector<PolicyResult> ranks(static_cast<size_t>(shape.size(Axis::kWorld)));
  run_torch_ranks(shape, [&](Mesh mesh) {
    ranks[static_cast<size_t>(mesh.rank())] = train_rank(model, mesh, options);
  });
  for (const PolicyResult& rank : ranks) CHECK(rank.events == ranks[0].events);
  return std::move(ranks[0]);
}

}  // namespace fsdp::testing
