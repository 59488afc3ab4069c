#include "fsdp/mesh.h"

#include <doctest/doctest.h>

#include <mutex>
#include <set>

#include "fsdp/error.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

TEST_CASE("agree passes when all ranks say the same") {
  for (const int world : {1, 2, 3, 5}) {
    testing::run_ranks(world, [](const Mesh& mesh) {
      mesh.agree("model", {"layer.weight float32 [3, 4]", "layer.bias float32 [3]"});
      mesh.agree("empty", {});
    });
  }
}

TEST_CASE("agree refuses on all ranks, with the first difference and both values") {
  const auto errors = testing::errors_of_ranks(4, [](const Mesh& mesh) {
    std::vector<std::string> lines{"hidden 128", "layers 2", "heads 2"};
    if (mesh.rank() == 2) lines[1] = "layers 3";
    mesh.agree("configuration", lines);
  });
  for (const std::string& error : errors) {
    CHECK(error ==
          "ranks do not agree on the configuration: rank 0 has 'layers 2', rank 2 has 'layers 3' "
          "(configuration, line 2); hint: start all ranks with the same program, options and "
          "files");
  }
}

TEST_CASE("agree refuses lists of different lengths with code 78") {
  const auto thrown = testing::run_ranks_to_end(3, [](const Mesh& mesh) {
    std::vector<std::string> lines{"a"};
    if (mesh.rank() == 1) lines.push_back("b");
    mesh.agree("model", lines);
  });
  for (const auto& exception : thrown.of_rank) {
    try {
      REQUIRE(exception);
      std::rethrow_exception(exception);
    } catch (const CommError& error) {
      CHECK(error.code() == ExitCode::kConfiguration);
      CHECK(error.text().what ==
            "ranks do not agree on the model: rank 0 has '(nothing)', rank 1 has 'b'");
    }
  }
}

TEST_CASE("the host order numbers collectives and its hash tells orders apart") {
  const Mesh a = Mesh::single();
  const Mesh b = Mesh::single();
  CHECK(a.order_hash() == b.order_hash());
  CHECK(a.next_tag(Operation::kAllGather, 4096, "layers.0").sequence == 1);
  CHECK(a.next_tag(Operation::kReduceScatter, 12, "").sequence == 2);
  b.next_tag(Operation::kReduceScatter, 12, "");
  b.next_tag(Operation::kAllGather, 4096, "layers.0");
  CHECK(a.order_hash() != b.order_hash());
  CHECK(a.recent_collectives() ==
        std::vector<std::string>{"#1 all_gather 4096 layers.0", "#2 reduce_scatter 12 "});
}

TEST_CASE("the mesh keeps the last 64 collectives, or all of them when asked") {
  const Mesh mesh = Mesh::single();
  for (int i = 0; i < 100; ++i) mesh.next_tag(Operation::kBarrier, 0, "x");
  CHECK(mesh.recent_collectives().size() == 64);
  CHECK(mesh.recent_collectives().front() == "#37 barrier 0 x");
  mesh.record_all_collectives();
  for (int i = 0; i < 100; ++i) mesh.next_tag(Operation::kBarrier, 0, "x");
  CHECK(mesh.recent_collectives().size() == 164);
}

TEST_CASE("copies of a mesh share state that engines put there") {
  const Mesh mesh = Mesh::single();
  const Mesh copy = mesh;
  const auto state = std::make_shared<int>(7);
  mesh.engine_state() = state;
  CHECK(copy.engine_state().lock() == state);
}

TEST_CASE("thread ranks are numbered and a world without ranks is refused") {
  std::mutex mutex;
  std::set<int> ranks;
  testing::run_ranks(5, [&](const Mesh& mesh) {
    CHECK(mesh.world_size() == 5);
    CHECK(mesh.local_rank() == mesh.rank());
    CHECK(mesh.size(Axis::kShard) == 5);
    const std::lock_guard lock(mutex);
    ranks.insert(mesh.rank());
  });
  CHECK(ranks == std::set<int>{0, 1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(Mesh::local(0), "a mesh of 0 ranks; hint: one rank is the least",
                       InvalidArgument);
}

TEST_CASE("thread ranks refuse to run without communication") {
  CHECK_THROWS_WITH_AS(Mesh::local(2, {.ablate_communication = true}),
                       doctest::Contains("start processes and use Mesh::from_env"),
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp
