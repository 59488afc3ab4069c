// Tests parts of a mesh: their ranks, their collectives, and the job that they share.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/mesh_state.h"
#include "comm/support/error_texts.h"
#include "fsdp/error.h"
#include "fsdp/mesh.h"
#include "support/cpu_streams.h"
#include "support/mismatch_text.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

// Returns the job's ranks along an axis of a part. It finds them by the part's gathers and by its
// reductions.
std::vector<int64_t> ranks_along(const Mesh& part, Axis axis) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "ranks");
  CollectiveSequence& order = state_of(part).order();
  const int64_t mine = part.job_rank();
  std::vector<int64_t> ranks(static_cast<size_t>(part.size(axis)));
  const CollectivePart gathered{&mine, ranks.data(), 1, DType::kInt64};
  state_of(part).gather_communicator(axis).all_gather(
      {&gathered, 1}, order.next(Operation::kAllGather, 1, "ranks"), *stream);
  int64_t sum = 0;
  const CollectivePart reduced{&mine, &sum, 1, DType::kInt64};
  state_of(part).reduce_communicator(axis).all_reduce(
      {&reduced, 1}, ReduceOp::kSum, order.next(Operation::kAllReduce, 1, "ranks"), *stream);
  CHECK(sum == std::accumulate(ranks.begin(), ranks.end(), int64_t{0}));
  return ranks;
}

using Ranks = std::vector<int64_t>;

TEST_CASE("the ranks of one color are a mesh of their own, in their order") {
  for (const int world : {1, 2, 3, 5}) {
    testing::run_ranks(world, [&](const Mesh& mesh) {
      const int color = mesh.rank() % 2;
      const Mesh part = mesh.part(color);
      Ranks expected;
      for (int rank = color; rank < world; rank += 2) expected.push_back(rank);
      const auto size = static_cast<int>(expected.size());
      CHECK(part.world_size() == size);
      CHECK(part.rank() == mesh.rank() / 2);
      CHECK(part.job_rank() == mesh.rank());
      CHECK(part.size(Axis::kShard) == size);
      CHECK(part.size(Axis::kReplicate) == 1);
      CHECK(ranks_along(part, Axis::kWorld) == expected);
      CHECK(part.gather(std::vector<int64_t>{mesh.rank()}) == expected);
      CHECK(part.exchange("letters", std::string(1 + part.rank(), 'a')).back() ==
            std::string(size, 'a'));
      CHECK(mesh.sum(1) == world);  // the whole mesh remains usable
    });
  }
}

TEST_CASE("a part has axes of its own, and a part of it, too") {
  testing::run_ranks(8, [](const Mesh& mesh) {
    const int color = mesh.rank() / 4;
    const Mesh part = mesh.part(color, {.shard = 2});
    CHECK(part.size(Axis::kReplicate) == 2);
    const int64_t first = mesh.rank() / 2 * 2;
    CHECK(ranks_along(part, Axis::kShard) == Ranks{first, first + 1});
    const int64_t number = 4 * color + mesh.rank() % 2;
    CHECK(ranks_along(part, Axis::kReplicate) == Ranks{number, number + 2});
    const Mesh pair = part.part(part.rank() % 2);
    CHECK(ranks_along(pair, Axis::kWorld) == Ranks{number, number + 2});
    CHECK(pair.job_rank() == mesh.rank());
    CHECK(pair.rank() == mesh.rank() % 4 / 2);
    CHECK(&state_of(pair).memory_budget() == &state_of(mesh).memory_budget());
  });
}

TEST_CASE("a part outlives the variable of the mesh that was split") {
  testing::run_ranks(2, [](const Mesh& mesh) {
    const Mesh part = [&] {
      const Mesh whole = mesh.part(0);
      return whole.part(0);
    }();
    CHECK(part.sum(1) == 2);
  });
}

TEST_CASE("ranks of different parts do different things, and no one calls it a mismatch") {
  for (const bool neighbours : {true, false}) {
    testing::run_ranks(4, [&](const Mesh& mesh) {
      const int color = neighbours ? mesh.rank() / 2 : mesh.rank() % 2;
      const Mesh part = mesh.part(color);
      for (int round = 0; round < 3; ++round) {
        // At first both parts issue the same number of collectives, but with other operations,
        // sizes and names. Then the numbers differ too.
        for (int i = 0; i < 5 + 4 * color; ++i) {
          if (color == 0)
            CHECK(part.sum(std::array{1, 2}, "first") == std::array<int64_t, 2>{2, 4});
          if (color == 1) CHECK(ranks_along(part, Axis::kWorld).size() == 2);
        }
        CHECK(mesh.max(mesh.rank()) == 3);
      }
    });
  }
}

TEST_CASE("a different collective in a part is an error of the job that names its ranks") {
  const auto errors = testing::errors_of_ranks(5, [](const Mesh& mesh) {
    const Mesh part = mesh.part(mesh.rank() < 2 ? 0 : 1);
    if (mesh.rank() < 2) {
      while (true) part.sum(1, "goes on");
    }
    part.sum(1, "step");
    part.sum(1, mesh.rank() == 4 ? "odd" : "even");
  });
  for (const std::string& error : errors) {
    CHECK(error.find(testing::kDisagree +
                     "rank 2 issued all_reduce (sum) of 2 int64 "
                     "'even' #2, rank 4 issued all_reduce (sum) of 2 int64 'odd' #2") == 0);
  }
}

TEST_CASE("a rank of a part that gives up ends the other parts, by its number in the job") {
  const auto errors = testing::errors_of_ranks(4, [](const Mesh& mesh) {
    const Mesh part = mesh.part(mesh.rank() / 2);
    for (int round = 0;; ++round) {
      if (mesh.rank() == 3 && round == 3) throw std::runtime_error("the disk is full");
      part.sum(1);
    }
  });
  CHECK(errors[3] == "the disk is full");
  for (const int rank : {0, 1, 2}) {
    CHECK(errors[rank].find("rank 3 gave up") == 0);
    CHECK(errors[rank].find("the disk is full") != std::string::npos);
  }
}

TEST_CASE("a rank that lets its part go stays in the job") {
  testing::run_ranks(4, [](const Mesh& mesh) {
    { const Mesh done = mesh.part(mesh.rank() / 2); }
    CHECK(mesh.sum(1) == 4);
  });
}

TEST_CASE("what the ranks of a part do not agree on names them by their number in the job") {
  const auto errors = testing::errors_of_ranks(4, [](const Mesh& mesh) {
    const Mesh part = mesh.part(mesh.rank() / 2);
    part.agree("model", {mesh.rank() == 3 ? "layers 3" : "layers 2"});
    while (true) part.sum(1);
  });
  for (const std::string& error : errors) {
    CHECK(error.find("ranks do not agree on the model: rank 2 has 'layers 2', rank 3 has "
                     "'layers 3'") == 0);
  }
}

TEST_CASE("a rank that does not come to a collective of a part is named as in the job") {
  const auto errors =
      testing::errors_of_ranks(4,
                               [](const Mesh& mesh) {
                                 const Mesh part = mesh.part(mesh.rank() / 2);
                                 if (mesh.rank() != 3) part.sum(1, "lonely");
                                 mesh.sum(1);
                               },
                               {.mesh = {.timeout = std::chrono::milliseconds(600)}});
  // On several hosts, either of the two waits may reach its timeout first.
  for (const std::string& error : errors) {
    CHECK((error.find("rank 3 ") == 0 || error.find("rank 2 ") == 0));
    CHECK(error.find("did not arrive within 0.6 s") != std::string::npos);
  }
}

// Returns the error text of each rank. The mesh remains usable.
std::vector<std::string> refusals_of(int world, int (*color)(const Mesh&),
                                     PartOptions (*options)(const Mesh&)) {
  std::vector<std::string> told(static_cast<size_t>(world));
  testing::run_ranks(world, [&](const Mesh& mesh) {
    try {
      mesh.part(color(mesh), options(mesh));
    } catch (const InvalidArgument& error) {
      told[static_cast<size_t>(mesh.rank())] = error.what();
    }
    CHECK(mesh.sum(1) == world);
  });
  return told;
}

TEST_CASE("parts that cannot be are refused on every rank, and the mesh goes on") {
  const auto even = [](const Mesh&) { return 0; };
  const auto plain = [](const Mesh&) { return PartOptions{}; };
  for (const std::string& error : refusals_of(
           3, [](const Mesh& mesh) { return mesh.rank() - 1; }, plain)) {
    CHECK(error == "color is -1, expected 0 or more (Mesh::part); hint: " + testing::kColorHint);
  }
  for (const std::string& error : refusals_of(
           4, even, [](const Mesh& mesh) { return PartOptions{.shard = 1 + mesh.rank() / 2}; })) {
    CHECK(error ==
          "the ranks of part 0 set different options: 0 × 1 and 0 × 2 (replicate × shard) "
          "(Mesh::part); hint: pass the "
          "same options on all ranks of one color");
  }
  for (const std::string& error :
       refusals_of(3, even, [](const Mesh&) { return PartOptions{.shard = 2}; })) {
    CHECK(error.find("3 ranks cannot be divided into groups of 2") == 0);
  }
  testing::run_ranks(2, [](const Mesh& mesh) {
    for (int i = 0; i < 7; ++i) CHECK(mesh.part(0).sum(1) == 2);
    CHECK_THROWS_WITH_AS(mesh.part(0),
                         "a rank would belong to more than 8 meshes (Mesh::part); hint: split the "
                         "mesh once and reuse the parts",
                         DeviceError);
    CHECK_THROWS_AS(mesh.part(-1), InvalidArgument);
    CHECK(mesh.sum(1) == 2);
  });
}

}  // namespace
}  // namespace fsdp
