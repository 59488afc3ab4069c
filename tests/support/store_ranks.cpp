#include "support/store_ranks.h"

#include <exception>
#include <thread>

#include "comm/store/store_mesh.h"

namespace fsdp::testing {

LaunchEnvironment rank_on_hosts(int rank, int world, int hosts) {
  const int on_each = world / hosts;
  return {.launcher = Launcher::kTorchrun,
          .rank = rank,
          .world_size = world,
          .local_rank = rank % on_each,
          .local_world_size = on_each,
          .node = std::to_string(rank / on_each)};
}

std::vector<std::string> run_at_store(MemoryStore& store,
                                      const std::vector<LaunchEnvironment>& environments,
                                      const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body) {
  std::vector<std::string> thrown(environments.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < environments.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        StoreRanks joined =
            mesh_over_store(store.connect(environments[i].rank), environments[i], options);
        body(joined.parts);
      } catch (const std::exception& error) {
        thrown[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

std::vector<std::string> run_at_store(MemoryStore& store, int world, const MeshOptions& options,
                                      const std::function<void(MeshParts& parts)>& body) {
  std::vector<LaunchEnvironment> environments;
  for (int rank = 0; rank < world; ++rank) environments.push_back(rank_on_hosts(rank, world, 2));
  return run_at_store(store, environments, options, body);
}

}  // namespace fsdp::testing
