// Tests results, order and errors on a simulated link. tests/simulator/tests/cuda_wire_test.cpp
// tests the duration of collectives, in virtual time.
#include "support/wire/wire_communicator.h"

#include <doctest/doctest.h>

#include <thread>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/support/collective_sweep.h"
#include "comm/support/reduction_bits.h"
#include "fsdp/error.h"
#include "support/cpu_streams.h"
#include "support/run_ranks.h"
#include "support/wire/wire_ranks.h"

namespace fsdp {
namespace {

using testing::Wire;
using testing::WireCommunicator;
using testing::WireMeeting;

using std::chrono::microseconds;
using std::chrono::steady_clock;
using testing::SweepCase;

constexpr Wire kQuick{.gigabytes_per_second = 100, .latency = microseconds(1)};

testing::RunRanksOptions ranks_on(const Wire& wire) {
  return {.make = testing::ranks_on_wire(wire)};
}

// Returns ranks with a link of unlimited speed. The link marks and pauses streams, but adds no
// delay.
testing::RunRanksOptions ranks_on_unlimited_wire() {
  return {.make = [](int world, const MeshOptions& options) {
    const auto meeting = std::make_shared<WireMeeting>(world, cpu_device());
    std::vector<testing::WatchedRank> ranks;
    for (MeshParts& parts : local_mesh(world, options)) {
      parts.world.gather =
          std::make_unique<WireCommunicator>(std::move(parts.world.gather), Wire{}, meeting);
      ranks.push_back({nullptr, mesh_of(std::move(parts))});
    }
    return ranks;
  }};
}

TEST_CASE("every collective gives exact values on a wire, for every dtype and size") {
  for (const testing::RunRanksOptions& options : {ranks_on_unlimited_wire(), ranks_on(kQuick)}) {
    for (const int world : {1, 2, 3, 4}) {
      for (const SweepCase& sweep_case : testing::all_cases((1 << 12) + 1)) {
        CAPTURE(world);
        testing::run_ranks(
            world,
            [&](const Mesh& mesh) {
              const auto wrong =
                  testing::sweep(state_of(mesh).gather_communicator(Axis::kShard), sweep_case);
              for (const std::string& line : wrong) FAIL_CHECK(line);
            },
            options);
      }
    }
  }
}

TEST_CASE("sums have the same bits on a wire") {
  std::vector<std::string> bits(2);
  for (const bool on_wire : {false, true}) {
    testing::run_ranks(
        3,
        [&](const Mesh& mesh) {
          const std::string own =
              testing::reduction_bits(state_of(mesh).reduce_communicator(Axis::kShard), 20'000);
          if (mesh.rank() == 0) bits[on_wire ? 1 : 0] = own;
        },
        ranks_on(on_wire ? kQuick : Wire{}));
  }
  CHECK(bits[0] == bits[1]);
  CHECK(!bits[0].empty());
}

TEST_CASE("groups that a communicator on a wire is split into have wires of their own") {
  testing::run_ranks(
      5,
      [](const Mesh& mesh) {
        Communicator& whole = state_of(mesh).gather_communicator(Axis::kShard);
        for (int turn = 0; turn < 2; ++turn) {
          const auto group = whole.split(mesh.rank() == 4 ? 2 : mesh.rank() % 2, -mesh.rank());
          CHECK(group->size() == (mesh.rank() == 4 ? 1 : 2));
          const auto wrong = testing::sweep(*group, {.numel = 97, .threaded = turn == 1});
          for (const std::string& line : wrong) FAIL_CHECK(line);
        }
        mesh.agree("still here", {"yes"});
      },
      ranks_on(kQuick));
}

TEST_CASE("ranks that disagree on a wire are told as without one, and nobody waits for ever") {
  for (const auto streams : {testing::CpuStreams::kInline, testing::CpuStreams::kThreaded}) {
    const auto errors = testing::errors_of_ranks(
        2,
        [&](const Mesh& mesh) {
          const auto stream = testing::make_cpu_stream(streams, "x");
          std::vector<float> values(40);
          const CollectivePart part{values.data(), values.data(), 10 + mesh.rank(),
                                    DType::kFloat32};
          state_of(mesh)
              .reduce_communicator(Axis::kShard)
              .all_reduce({&part, 1}, ReduceOp::kSum, {.sequence = 3, .label = "norm"}, *stream);
          stream->synchronize();
        },
        ranks_on(kQuick));
    for (const std::string& error : errors) {
      CHECK(error.find("rank 0 issued all_reduce (sum) of 10 float32 'norm' #3, rank 1 issued "
                       "all_reduce (sum) of 11 float32 'norm' #3") != std::string::npos);
    }
  }
}

TEST_CASE("a collective that is refused leaves the wire as it was") {
  testing::run_ranks(
      2,
      [](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        Communicator& communicator = state_of(mesh).gather_communicator(Axis::kShard);
        const CollectivePart wrong{.numel = -1};
        if (mesh.rank() == 0) {  // one call more than the other rank
          CHECK_THROWS_AS(communicator.all_gather({&wrong, 1}, {.label = "x"}, *stream),
                          InvalidArgument);
        }
        for (int turn = 0; turn < 4; ++turn) communicator.barrier({.label = "x"}, *stream);
        const auto bad = testing::sweep(communicator, {.numel = 31});
        for (const std::string& line : bad) FAIL_CHECK(line);
      },
      ranks_on(kQuick));
}

TEST_CASE("a collective that would take over a minute is refused before anybody waits") {
  // The link transfers 5 bytes a second. The records that ranks exchange are short enough for this.
  const auto errors = testing::errors_of_ranks(
      2,
      [](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        std::vector<float> values(1000);
        const CollectivePart part{values.data(), values.data(), 1000, DType::kFloat32};
        state_of(mesh)
            .reduce_communicator(Axis::kShard)
            .broadcast({&part, 1}, 0, {.label = "x"}, *stream);
      },
      ranks_on({.gigabytes_per_second = 5e-9}));
  for (const std::string& error : errors) {
    CHECK(error.find("a collective of 4000 bytes on a wire of 5e-09 GB/s takes 800 s") == 0);
  }
}

// Checks only the "at least" of the contract, which also holds on a busy machine.
TEST_CASE("a wire's time counts from when the last rank came, on inline and threaded streams") {
  constexpr microseconds kLatency{3000};
  for (const auto streams : {testing::CpuStreams::kInline, testing::CpuStreams::kThreaded}) {
    std::vector<steady_clock::time_point> came(2), over(2);
    testing::run_ranks(
        2,
        [&](const Mesh& mesh) {
          const auto stream = testing::make_cpu_stream(streams, "x");
          if (mesh.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          came[mesh.rank()] = steady_clock::now();
          state_of(mesh).gather_communicator(Axis::kShard).barrier({.label = "x"}, *stream);
          stream->synchronize();
          over[mesh.rank()] = steady_clock::now();
        },
        ranks_on({.latency = kLatency}));
    for (const auto& end : over) CHECK(end - std::max(came[0], came[1]) >= kLatency);
  }
}

TEST_CASE("ranks are put on a wire that can be, and one rank alone has none") {
  std::vector<MeshParts> ranks = local_mesh(2, {});
  CHECK_THROWS_AS(testing::put_on_wire(ranks, {.gigabytes_per_second = -2}), InvalidArgument);
  std::vector<MeshParts> one = local_mesh(1, {});
  const Communicator* const gather = one.front().world.gather.get();
  testing::put_on_wire(one, kQuick);
  CHECK(one.front().world.gather.get() == gather);
}

}  // namespace
}  // namespace fsdp
