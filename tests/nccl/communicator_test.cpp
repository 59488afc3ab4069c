// NCCL's communicator between simulated GPUs.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "comm/support/collective_sweep.h"
#include "comm/support/reduction_bits.h"
#include "nccl/support/nccl_ranks.h"
#include "nccl/support/staged_communicator.h"
#include "support/cpu_streams.h"
#include "support/run_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const std::vector<std::string> kNone;

}  // namespace

TEST_CASE("every collective gives exact values between GPUs, for every dtype and size") {
  for (const int world : {2, 3, 4}) {
    for (const SweepCase& sweep_case : all_cases(1025)) {
      CAPTURE(world);
      CAPTURE(describe(sweep_case));
      NcclMachine machine(world, {.seed = static_cast<uint32_t>(sweep_case.numel + world)});
      run_nccl_ranks(world, machine, [&](const NcclRank& rank) {
        StagedCommunicator staged(rank.make("all"), rank.device);
        for (const std::string& line : sweep(staged, sweep_case)) FAIL_CHECK(line);
      });
      CHECK(machine.gpu().take_reports() == kNone);
    }
  }
}

TEST_CASE("groups that a communicator is split into are by themselves") {
  NcclMachine machine(4);
  run_nccl_ranks(4, machine, [&](const NcclRank& rank) {
    const int own = rank.mesh.rank();
    StagedCommunicator whole(rank.make("all"), rank.device);
    const auto group = whole.split(own % 2, -own);
    CHECK(group->size() == 2);
    CHECK(group->rank() == (own < 2 ? 1 : 0));
    const auto stream = make_cpu_stream(CpuStreams::kInline, "group");
    int64_t sum = own;
    const CollectivePart part{&sum, &sum, 1, DType::kInt64};
    group->all_reduce({&part, 1}, ReduceOp::kSum, {.label = "sum"}, *stream);
    CHECK(sum == (own % 2 == 0 ? 2 : 4));
    const auto alone = group->split(group->rank(), 0);
    CHECK(alone->size() == 1);
    for (const SweepCase& sweep_case : {SweepCase{.numel = 3}, SweepCase{.numel = 1009}}) {
      for (const std::string& line : sweep(*group, sweep_case)) FAIL_CHECK(line);
    }
  });
  CHECK(machine.gpu().take_reports() == kNone);
}
