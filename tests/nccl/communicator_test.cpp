// Tests NCCL's communicator on simulated GPUs.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
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

TEST_CASE("a group of a split is connected when it is made") {
  NcclMachine machine(2, {.timeout = std::chrono::milliseconds(2000)});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto group = rank.make("all")->split(0, rank.mesh.rank());
    const auto stream = rank.device.make_stream({.name = "group"});
    const Buffer word = rank.device.allocate(sizeof(int32_t), MemoryKind::kDevice);
    const CollectivePart part{word.data(), word.data(), 1, DType::kInt32};
    const auto sum = [&] {
      group->all_reduce({&part, 1}, ReduceOp::kSum, {.label = "sum"}, *stream);
    };
    // The rank that issues the first collective does not wait for the other rank.
    if (rank.mesh.rank() == 0) sum();
    rank.meet("rank 0 has issued it");
    if (rank.mesh.rank() == 1) sum();
    stream->synchronize();
  });
  CHECK(machine.gpu().take_reports() == kNone);
}

TEST_CASE("maxima and barriers on several streams are in order where they share memory") {
  for (const uint32_t seed : {1, 2, 3}) {
    NcclMachine machine(2, {.seed = seed});
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const auto all = rank.make("all");
      const auto one = rank.device.make_stream({.name = "one"});
      const auto two = rank.device.make_stream({.name = "two"});
      const Buffer memory = rank.device.allocate(4096, MemoryKind::kDevice);
      const CollectivePart few{memory.at(0), memory.at(512), 16, DType::kFloat32};
      const CollectivePart more{memory.at(1024), memory.at(2048), 64, DType::kFloat32};
      all->all_reduce({&few, 1}, ReduceOp::kMax, {.label = "few"}, *one);
      all->all_reduce({&more, 1}, ReduceOp::kMax, {.label = "more"}, *two);  // in more memory
      all->all_reduce({&few, 1}, ReduceOp::kMax, {.label = "few"}, *one);
      all->barrier({.label = "barrier"}, *two);
      one->synchronize();
      two->synchronize();
    });
    CHECK(machine.gpu().take_reports() == kNone);
  }
}

TEST_CASE("maxima of several parts are each their own") {
  constexpr std::array<int64_t, 4> kNumels{5, 0, 129, 3};
  for (const int world : {2, 3}) {
    NcclMachine machine(world);
    run_nccl_ranks(world, machine, [&](const NcclRank& rank) {
      // The value depends on the part. For each element, another rank has the largest value.
      const auto value = [](size_t part, int of, int64_t i) {
        return static_cast<float>(1000 * (part + 1)) + static_cast<float>((7 * i + 5 * of) % 97);
      };
      const auto largest = [&](size_t part, int64_t i) {
        float found = 0;
        for (int of = 0; of < world; ++of) found = std::max(found, value(part, of, i));
        return found;
      };
      StagedCommunicator staged(rank.make("all"), rank.device);
      const auto stream = make_cpu_stream(CpuStreams::kInline, "all");
      for (const int pieces : {1, world}) {  // for all_reduce; for reduce_scatter
        std::vector<std::vector<float>> sent, received;
        std::vector<CollectivePart> parts;
        for (size_t part = 0; part < kNumels.size(); ++part) {
          received.emplace_back(kNumels[part] + 1, -1.0F);
          std::vector<float>& values = sent.emplace_back(kNumels[part] * pieces + 1);
          for (int64_t i = 0; i < kNumels[part] * pieces; ++i) {
            values[static_cast<size_t>(i)] = value(part, rank.mesh.rank(), i);
          }
        }
        for (size_t part = 0; part < kNumels.size(); ++part) {
          parts.push_back({sent[part].data(), received[part].data(), kNumels[part]});
        }
        if (pieces == 1) {
          staged.all_reduce(parts, ReduceOp::kMax, {.label = "maxima"}, *stream);
        } else {
          staged.reduce_scatter(parts, ReduceOp::kMax, {.label = "maxima"}, *stream);
        }
        for (size_t part = 0; part < kNumels.size(); ++part) {
          CAPTURE(part);
          const int64_t first = pieces == 1 ? 0 : rank.mesh.rank() * kNumels[part];
          std::vector<float> expected;
          for (int64_t i = 0; i < kNumels[part]; ++i) expected.push_back(largest(part, first + i));
          expected.push_back(-1);
          CHECK(received[part] == expected);
        }
      }
    });
    CHECK(machine.gpu().take_reports() == kNone);
  }
}

TEST_CASE("what NCCL is not asked for is refused: an average, and what lies in several places") {
  NcclMachine machine(2);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto all = rank.make("all");
    CHECK_FALSE(all->capabilities().averages);
    CHECK_FALSE(all->capabilities().takes_runs);
    const auto stream = rank.device.make_stream({.name = "all"});
    const Buffer memory = rank.device.allocate(1024, MemoryKind::kDevice);
    const CollectivePart part{memory.at(0), memory.at(512), 16, DType::kFloat32};
    CHECK_THROWS_WITH(
        all->all_reduce({&part, 1}, ReduceOp::kAvg, {.label = "mean"}, *stream),
        "the NCCL communicator does not average (kAvg) (all_reduce (avg) of 16 float32 'mean'); "
        "hint: scale the values and use kSum: see Capabilities::averages");
    const std::array<SendRun, 2> runs{SendRun{memory.at(0), 8}, SendRun{memory.at(64), 8}};
    const CollectivePart in_runs{nullptr, memory.at(512), 16, DType::kFloat32, runs};
    CHECK_THROWS_WITH(all->all_gather({&in_runs, 1}, {.label = "runs"}, *stream),
                      "the send buffer has 2 runs, NCCL accepts 1 (all_gather of 16 float32 "
                      "'runs'); hint: check Capabilities::takes_runs before sending runs");
  });
  CHECK(machine.nccl().calls("ncclAllGather") == 0);
  CHECK(machine.gpu().take_reports() == kNone);
}
