// Tests threads with one GPU each in one process. Some calls may wait for a peer's collective.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "nccl/support/nccl_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the reports of a job in which rank 1 allocates, frees and loads a kernel. It does so
// after rank 0's collective if `behind_a_collective`, and otherwise before it.
std::vector<std::string> reports_of(bool one_process, bool behind_a_collective) {
  NcclMachine machine(2, {.one_process = one_process});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto stream = rank.device.make_stream({.name = "gather"});
    const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
    const auto gather = [&] {
      const CollectivePart part{memory.at(0), memory.at(256), 16, DType::kFloat32};
      communicator->all_gather({&part, 1}, {.label = "layers.3"}, *stream);
    };
    const bool is_first = rank.mesh.rank() == 0;
    rank.meet("made");
    if (is_first && behind_a_collective) gather();
    rank.meet("rank 0 is ahead");
    if (!is_first) {
      for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned}) {
        const Buffer buffer = rank.device.allocate(64, kind);
      }
      kernels::cuda::load_kernels();
    }
    rank.meet("rank 1 has allocated");
    if (!is_first || !behind_a_collective) gather();
    stream->synchronize();
    rank.meet("gathered");
  });
  return machine.gpu().take_reports();
}

}  // namespace

TEST_CASE("in one process, calls that may wait for a peer's collective are reported") {
  const std::vector<std::string> reports = reports_of(true, true);
  REQUIRE(reports.size() > 5);
  const std::string rest =
      " on device 1 may wait for collective 1 of communicator 1 on device 0, which waits for "
      "device 1";
  for (size_t i = 0;
       const char* const call : {"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost",
                                 "cudaFuncGetAttributes, which loads a kernel,"}) {
    CHECK(reports[i++] == call + rest);
  }
}

TEST_CASE("calls that no collective is waited for by, or of processes, are not reported") {
  CHECK(reports_of(true, false).empty());
  CHECK(reports_of(false, true).empty());
}
