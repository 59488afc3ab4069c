// One rank of a job of processes. It trains every plain model with units by policy, and compares
// bits with the plain training. Usage: fsdp-run -n 3 policy_rank
#include <fmt/format.h>
#include <fsdp/program.h>

#include "policy/support/policy_twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

int train(const Mesh& mesh) {
  at::set_num_threads(1);
  int differ = 0;
  const MeshShape shape{.replicate = 1, .shard = mesh.world_size()};
  for (const PlainModel& model : plain_models()) {
    const PolicyResult plain = train_plainly(model, shape, /*by_groups=*/false, std::nullopt);
    for (const Strategy strategy : kStrategies) {
      const PolicyResult got = train_rank(model, mesh, {.strategy = strategy});
      if (mesh.rank() != 0) continue;  // the plain result has losses and buffers of rank 0
      const std::string difference = first_difference(got, plain);
      if (difference.empty()) continue;
      fmt::print(stderr, "{} under strategy {}: {}\n", model.name, static_cast<int>(strategy),
                 difference);
      ++differ;
    }
  }
  return differ == 0 ? 0 : 1;
}

}  // namespace

int main() {
  return run_program([](const Mesh& mesh, ErrorPlace&) { return train(mesh); });
}
