// One rank of a job of processes: trains every plain model by policy and holds it against the plain
// bits. fsdp-run -n 3 policy_rank
#include <fmt/format.h>
#include <fsdp/program.h>

#include "policy/support/policy_twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

bool are_equal(const PolicyResult& got, const PolicyResult& plain) {
  bool equal = got.losses == plain.losses;
  for (const auto& [fqn, value] : got.parameters) {
    equal = equal && bit_equal(value, plain.parameters.at(fqn));
  }
  return equal;
}

int train(const Mesh& mesh) {
  at::set_num_threads(1);
  int differ = 0;
  const MeshShape shape{.replicate = 1, .shard = mesh.world_size()};
  for (const PlainModel& model : plain_models()) {
    const PolicyResult plain = train_plainly(model, shape, /*by_groups=*/false, std::nullopt);
    for (const Strategy strategy : kStrategies) {
      const PolicyResult got = train_rank(model, mesh, {.strategy = strategy});
      if (mesh.rank() != 0 || are_equal(got, plain)) continue;
      fmt::print(stderr, "{} differs under strategy {}\n", model.name, static_cast<int>(strategy));
      ++differ;
    }
  }
  return differ == 0 ? 0 : 1;
}

}  // namespace

int main() {
  return run_program([](const Mesh& mesh, ErrorPlace&) { return train(mesh); });
}
