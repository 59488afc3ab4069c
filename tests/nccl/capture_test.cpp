// Tests a user's CUDA graph that is captured while a collective runs.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <thread>

#include "comm/mesh_state.h"
#include "nccl/support/nccl_ranks.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("a graph can be captured while a collective is under way") {
  NcclMachine machine(2);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto stream = rank.device.make_stream({.name = "gather"});
    const auto of_user = rank.device.make_stream({.name = "a user's"});
    const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
    const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
    const auto gather = [&] {
      communicator->all_gather({&part, 1}, {.sequence = 1, .label = "layers.3"}, *stream);
    };
    rank.meet("begin");  // until it has captured, only rank 0 calls CUDA
    if (rank.mesh.rank() == 0) {
      gather();  // pending until rank 1 issues its share
      auto* const captured = static_cast<cudaStream_t>(of_user->native());
      CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal) == cudaSuccess);
      const auto looks = [&] { return machine.nccl().calls("ncclCommGetAsyncError", 0); };
      const ControlPlane& plane = *state_of(rank.mesh).parts().control_plane;
      for (const int64_t before = looks(); looks() < before + 3 && !plane.first_failure();) {
        std::this_thread::yield();
      }
      cudaGraph_t graph = nullptr;
      CHECK(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
    }
    rank.meet("captured");
    if (rank.mesh.rank() == 1) gather();
    stream->synchronize();
    rank.meet("end");
  });
}
