#include "comm/cpu/split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <thread>

#include "comm/mesh_state.h"
#include "comm/support/collective_sweep.h"
#include "comm/support/error_texts.h"
#include "fsdp/error.h"
#include "support/cpu_streams.h"
#include "support/mismatch_text.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

// Returns the job's ranks in the communicator, in the communicator's order.
std::vector<int64_t> ranks_of(const Mesh& mesh, Communicator& communicator) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "ranks");
  const int64_t mine = mesh.rank();
  std::vector<int64_t> ranks(communicator.size());
  const CollectivePart part{&mine, ranks.data(), 1, DType::kInt64};
  communicator.all_gather({&part, 1}, {.label = "ranks"}, *stream);
  CHECK(ranks[communicator.rank()] == mesh.rank());
  return ranks;
}

void barrier(Communicator& communicator, uint64_t sequence) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "barrier");
  communicator.barrier({.sequence = sequence, .label = "x"}, *stream);
}

TEST_CASE("a split groups ranks by color and orders a group by key, then by rank") {
  for (const int world : {1, 2, 3, 5}) {
    testing::run_ranks(world, [&](const Mesh& mesh) {
      Communicator& all = state_of(mesh).control_communicator();
      const auto by_rank = all.split(mesh.rank() % 2, 0);
      const auto backwards = all.split(mesh.rank() % 2, -mesh.rank());
      std::vector<int64_t> expected;
      for (int rank = mesh.rank() % 2; rank < world; rank += 2) expected.push_back(rank);
      CHECK(ranks_of(mesh, *by_rank) == expected);
      std::reverse(expected.begin(), expected.end());
      CHECK(ranks_of(mesh, *backwards) == expected);
    });
  }
}

TEST_CASE("groups run every collective with exact values, beside each other and their parent") {
  for (const int world : {2, 3, 5}) {
    testing::run_ranks(world, [&](const Mesh& mesh) {
      Communicator& parent = state_of(mesh).gather_communicator(Axis::kShard);
      const auto group = parent.split(mesh.rank() % 2, mesh.rank());
      const std::vector<testing::SweepCase> cases{
          {.numel = 3},
          {.numel = 1009, .in_place = true, .threaded = true},
          {.numel = 70'001, .in_peer_memory = true},
          {.numel = 70'001, .in_runs = true}};
      std::vector<std::string> in_parent;
      std::thread beside([&] {
        for (const auto& sweep_case : cases) {
          std::ranges::move(testing::sweep(parent, sweep_case), std::back_inserter(in_parent));
        }
      });
      std::vector<std::string> in_group;
      for (const auto& sweep_case : cases) {
        std::ranges::move(testing::sweep(*group, sweep_case), std::back_inserter(in_group));
      }
      beside.join();
      for (const std::string& line : in_parent) FAIL_CHECK(line);
      for (const std::string& line : in_group) FAIL_CHECK(line);
    });
  }
}

TEST_CASE("groups are split again, some more often than others") {
  testing::run_ranks(5, [&](const Mesh& mesh) {
    const auto pair = state_of(mesh).control_communicator().split(mesh.rank() < 2 ? 0 : 1, 0);
    std::unique_ptr<Communicator> again;
    for (int i = 0; i < (mesh.rank() < 2 ? 3 : 1); ++i) {
      again = pair->split(pair->rank() == 0 ? 0 : 1, 0);
    }
    const auto odd_and_even = state_of(mesh).control_communicator().split(mesh.rank() % 2, 0);
    CHECK(odd_and_even->size() == (mesh.rank() % 2 == 0 ? 3 : 2));
    for (int i = 0; i < 100; ++i) {
      barrier(*again, 0);
      barrier(*odd_and_even, 0);
      barrier(*pair, 0);
    }
    CHECK(again->size() == (pair->rank() == 0 ? 1 : pair->size() - 1));
  });
}

TEST_CASE("a group goes on when its parent has gone") {
  testing::run_ranks(4, [&](const Mesh& mesh) {
    auto pair = state_of(mesh).control_communicator().split(mesh.rank() / 2, 0);
    const auto alone = pair->split(mesh.rank(), 0);
    const auto swapped = pair->split(0, -mesh.rank());
    pair.reset();
    barrier(*alone, 0);
    CHECK(ranks_of(mesh, *swapped).front() == mesh.rank() / 2 * 2 + 1);
  });
}

TEST_CASE("ranks of a group that disagree are named as the job numbers them") {
  const auto errors = testing::errors_of_ranks(4, [&](const Mesh& mesh) {
    const auto group = state_of(mesh).control_communicator().split(mesh.rank() % 2, 0);
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
    std::array<float, 4> values{};
    const CollectivePart part{values.data(), values.data(), mesh.rank() == 3 ? 3 : 4,
                              DType::kFloat32};
    group->all_reduce({&part, 1}, ReduceOp::kSum, {.sequence = 7, .label = "norm"}, *stream);
    barrier(state_of(mesh).control_communicator(), 8);  // reports the failure to the other group
  });
  for (const std::string& error : errors) {
    CHECK(error ==
          testing::kDisagree +
              "rank 1 issued all_reduce (sum) of 4 float32 'norm' "
              "#7, rank 3 issued all_reduce (sum) of 3 float32 'norm' #7 (collective 1 of the "
              "communicator); hint: " +
              testing::kSameCollectivesHint);
  }
}

TEST_CASE("a rank of a group that leaves is named as the job numbers it") {
  const auto errors = testing::errors_of_ranks(4, [&](const Mesh& mesh) {
    const auto group = state_of(mesh).control_communicator().split(mesh.rank() % 2, 0);
    if (mesh.rank() != 3) barrier(*group, 0);
    if (mesh.rank() % 2 == 0) barrier(state_of(mesh).control_communicator(), 0);
  });
  CHECK(errors[1].find("rank 3 left while other ranks still need it (barrier 'x')") == 0);
  CHECK(errors[3] == "");
}

TEST_CASE("ranks that wait for each other in a group and in its parent are told so at once") {
  const auto errors = testing::errors_of_ranks(
      4,
      [&](const Mesh& mesh) {
        const auto group = state_of(mesh).control_communicator().split(mesh.rank() % 2, 0);
        barrier(mesh.rank() == 1 ? *group : state_of(mesh).reduce_communicator(Axis::kShard), 7);
      },
      {.mesh = {.timeout = std::chrono::minutes(10)}});
  for (const std::string& error : errors) {
    CHECK(error == errors[0]);
    CHECK(error.find(testing::kDisagree + "rank ") == 0);
    CHECK(error.find("(collective #7" + testing::kOnDifferentCommunicators) != std::string::npos);
  }
}

TEST_CASE("groups that use one number at a time are no disagreement") {
  testing::run_ranks(4, [&](const Mesh& mesh) {
    const auto group = state_of(mesh).control_communicator().split(mesh.rank() % 2, 0);
    for (uint64_t sequence = 1; sequence < 200; ++sequence) {
      // The groups are not synchronized: one may be up to fifty collectives ahead of the other.
      if (mesh.rank() % 2 == 0 && sequence % 50 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
      }
      barrier(*group, sequence);
    }
    barrier(state_of(mesh).reduce_communicator(Axis::kShard), 200);
  });
}

TEST_CASE("a split that cannot be is refused on every rank") {
  const auto negative = testing::errors_of_ranks(
      2, [](const Mesh& mesh) { state_of(mesh).control_communicator().split(-1, 0); });
  for (const std::string& error : negative) {
    CHECK(error.find("color is -1, expected 0 or more (Communicator::split); hint: " +
                     testing::kColorHint) == 0);
  }
  testing::run_ranks(2, [](const Mesh& mesh) {
    Communicator& all = state_of(mesh).control_communicator();
    for (int i = 0; i < 56; ++i) CHECK(all.split(0, 0)->size() == 2);
    CHECK_THROWS_WITH_AS(all.split(0, 0),
                         "a rank already has 56 communicators from split, the maximum "
                         "(Communicator::split); hint: split once and reuse the communicators",
                         DeviceError);
    barrier(all, 0);
  });
}

}  // namespace
}  // namespace fsdp
