// Runs the communicator tests over NCCL. Each rank has its own simulated GPU. A collective copies
// its data to the GPU, exchanges it by NCCL, and copies the result back. If FSDP_TEST_HOSTS=2, the
// ranks are on two hosts that share only a store.
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/nccl/nccl_mesh.h"
#include "comm/store/store_mesh.h"
#include "nccl/support/nccl_ranks.h"
#include "nccl/support/staged_communicator.h"
#include "support/run_ranks.h"
#include "support/store_ranks.h"

namespace fsdp::testing {
namespace {

struct Job {
  Job(int world, const MeshOptions& options)
      : machine(world, {.timeout = options.timeout}), sessions(static_cast<size_t>(world)) {}
  MemoryStore store;
  NcclMachine machine;
  std::vector<std::shared_ptr<NcclSession>> sessions;
};

// A watch for all ranks. If a simulated GPU has a report, it fails the test of the rank that ends
// last.
class WatchOfGpus : public RankWatch {
 public:
  WatchOfGpus(std::shared_ptr<Job> job, int rank) : job_(std::move(job)), rank_(rank) {}
  void begin() override { job_->machine.device(rank_).make_current(); }
  void end(bool threw) override {
    if (threw) return;  // an error interrupts work, so reports are expected
    const std::vector<std::string> reports = job_->machine.gpu().take_reports();
    if (!reports.empty()) throw std::runtime_error("the simulated GPUs report: " + reports.front());
  }

 private:
  const std::shared_ptr<Job> job_;
  const int rank_;
};

void connect(MeshParts& parts, int rank, Job& job) {
  const CudaDevice& device = job.machine.device(rank);
  device.make_current();
  connect_by_nccl(parts, job.machine.session(*parts.control_plane));
  wrap_communicators(parts, [&device](std::unique_ptr<Communicator> made) {
    return std::make_unique<StagedCommunicator>(std::move(made), device);
  });
  parts.device = &cpu_device();  // the tests' memory is host memory
}

std::vector<MeshParts> on_one_host(int world, const MeshOptions& options, Job& job) {
  std::vector<MeshParts> ranks = local_mesh(world, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { connect(ranks[static_cast<size_t>(rank)], rank, job); });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::vector<MeshParts> on_hosts(int world, int hosts, const MeshOptions& options, Job& job) {
  std::vector<MeshParts> ranks(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      LaunchEnvironment environment = rank_on_hosts(rank, world, 1);
      environment.node = std::to_string(rank * hosts / world);
      MeshParts& parts = ranks[static_cast<size_t>(rank)];
      parts = mesh_over_store(job.store.connect(rank), environment, options).parts;
      connect(parts, rank, job);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::vector<WatchedRank> ranks_by_nccl(int world, const MeshOptions& options) {
  if (world == 1) return {{nullptr, Mesh::local(1, options).front()}};
  const char* const hosts = std::getenv("FSDP_TEST_HOSTS");
  const auto job = std::make_shared<Job>(world, options);
  std::vector<MeshParts> parts = hosts == nullptr
                                     ? on_one_host(world, options, *job)
                                     : on_hosts(world, std::atoi(hosts), options, *job);
  std::vector<WatchedRank> ranks;
  for (MeshParts& each : parts) {
    const auto rank = static_cast<int>(ranks.size());
    ranks.push_back({std::make_shared<WatchOfGpus>(job, rank), mesh_of(std::move(each))});
  }
  return ranks;
}

const bool is_default = [] {
  make_ranks_by_default() = ranks_by_nccl;
  return true;
}();

}  // namespace
}  // namespace fsdp::testing
