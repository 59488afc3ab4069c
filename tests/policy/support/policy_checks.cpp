// The part of policy_twin.h that tests assert with: programs without doctest's main leave it out.
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

void check_bit_equal(const PolicyResult& sharded, const PolicyResult& plain) {
  CHECK(sharded.losses == plain.losses);
  for (const auto& [fqn, value] : sharded.parameters) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, plain.parameters.at(fqn)));
  }
  for (const auto& [fqn, value] : plain.buffers) {
    CAPTURE(fqn);
    CHECK(bit_equal(sharded.buffers.at(fqn).cpu(), value));
  }
}

}  // namespace fsdp::testing
