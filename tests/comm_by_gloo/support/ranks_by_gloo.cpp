// Runs the communicator tests over Gloo. Each rank is a thread with a store, a segment and
// connections of its own, as a process on its own host has.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/hosts/hosts_mesh.h"
#include "comm/mesh_state.h"
#include "comm/store/store_mesh.h"
#include "libtorch/gloo_links.h"
#include "support/run_ranks.h"
#include "support/store_ranks.h"

namespace fsdp::testing {
namespace {

MeshParts on_own_host(int rank, int world, const MeshOptions& options, MemoryStore& store) {
  // One host by the environment, so that all ranks form one shard group by default.
  LaunchEnvironment environment = rank_on_hosts(rank, world, 1);
  environment.node = std::to_string(rank);
  return hosts_mesh(mesh_over_store(store.connect(rank), environment, options), open_gloo,
                    "127.0.0.1", options);
}

// Keeps the store of a job until its last rank has ended.
class StoreOfJob : public RankWatch {
 public:
  MemoryStore store;
  void begin() override {}
  void end(bool) override {}
};

std::vector<WatchedRank> ranks_by_gloo(int world, const MeshOptions& options) {
  if (world == 1) return {{nullptr, Mesh::local(1, options).front()}};
  const auto job = std::make_shared<StoreOfJob>();
  std::vector<MeshParts> parts(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      parts[static_cast<size_t>(rank)] = on_own_host(rank, world, options, job->store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<WatchedRank> ranks;
  for (MeshParts& each : parts) ranks.push_back({job, mesh_of(std::move(each))});
  return ranks;
}

const bool is_default = [] {
  make_ranks_by_default() = ranks_by_gloo;
  return true;
}();

}  // namespace
}  // namespace fsdp::testing
