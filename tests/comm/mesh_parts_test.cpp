#include "comm/mesh_parts.h"

#include <doctest/doctest.h>

#include "comm/mesh_state.h"
#include "comm/simulated/simulated_communicator.h"
#include "comm/simulated/simulated_control_plane.h"
#include "fsdp/error.h"
#include "support/simulated_mesh.h"

namespace fsdp {
namespace {

std::unique_ptr<Communicator> of(int size) {
  return std::make_unique<SimulatedCommunicator>(SimulatedGroup{.size = size});
}

// A world of six ranks: two replicas of three shards.
MeshParts two_by_three() {
  return {.control_plane = std::make_unique<SimulatedControlPlane>(0, 6),
          .topology = {.host = "here", .local_rank = 4},
          .control = of(6),
          .shape = {.replicate = 2, .shard = 3},
          .world = {.gather = of(6), .reduce = of(6)},
          .shard = {.gather = of(3), .reduce = of(3)},
          .replicate = {.gather = of(2), .reduce = of(2)}};
}

TEST_CASE("a mesh is what its parts say") {
  const Mesh mesh = mesh_of(two_by_three());
  CHECK(mesh.rank() == 0);
  CHECK(mesh.world_size() == 6);
  CHECK(mesh.size(Axis::kReplicate) == 2);
  CHECK(mesh.size(Axis::kShard) == 3);
  CHECK(mesh.host() == "here");
  CHECK(mesh.local_rank() == 4);
  CHECK(state_of(mesh).reduce_communicator(Axis::kReplicate).size() == 2);
  CHECK(state_of(mesh).control_communicator().size() == 6);
  CHECK(mesh.exchange("names", "x").size() == 6);
  mesh.agree("nothing", {});
  mesh.warn({.what = "nobody listens"});
  mesh.abort("enough");
  CHECK_THROWS_WITH_AS(mesh.agree("nothing", {}),
                       "rank 0 gave up (nothing); enough; hint: see what rank 0 printed",
                       CommError);
}

TEST_CASE("parts that do not span the world are refused with all sizes") {
  MeshParts parts = two_by_three();
  parts.shard.reduce = of(2);
  CHECK_THROWS_WITH_AS(mesh_of(std::move(parts)),
                       "the sizes of the communicators do not fit a mesh of 6 ranks in 2 × 3 "
                       "(replicate × shard); hint: for each axis, pass one communicator for "
                       "gathers and one for reductions, each with as many ranks as the axis",
                       InvalidArgument);
}

TEST_CASE("parts that are missing are refused") {
  MeshParts parts = two_by_three();
  parts.replicate.gather.reset();
  CHECK_THROWS_WITH_AS(mesh_of(std::move(parts)),
                       "MeshParts lacks replicate; hint: set this field; if the mesh has two axes, "
                       "set the communicators of both axes",
                       InvalidArgument);
}

TEST_CASE("groups are neighbours, and the groups' ranks of one number are an axis") {
  const MeshShape shape{.replicate = 2, .shard = 3};
  CHECK(shape.has_two_axes());
  CHECK(shape.ranks(Axis::kShard, 4) == std::vector<int>{3, 4, 5});
  CHECK(shape.ranks(Axis::kReplicate, 4) == std::vector<int>{1, 4});
  CHECK(shape.ranks(Axis::kWorld, 4) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(shape.rank(Axis::kShard, 4) == 1);
  CHECK(shape.rank(Axis::kReplicate, 4) == 1);
  CHECK(shape.rank(Axis::kWorld, 4) == 4);
}

TEST_CASE("axes follow from one size, from the hosts, or are refused") {
  CHECK(shape_of({}, 8, 4) == MeshShape{.replicate = 2, .shard = 4});
  CHECK(shape_of({}, 4, 4) == MeshShape{.replicate = 1, .shard = 4});
  CHECK(shape_of({.shard = 2}, 8, 8) == MeshShape{.replicate = 4, .shard = 2});
  CHECK(shape_of({.replicate = 2}, 8, 8) == MeshShape{.replicate = 2, .shard = 4});
  CHECK(shape_of({.shard = 1, .replicate = 3}, 3, 3) == MeshShape{.replicate = 3, .shard = 1});
  CHECK_THROWS_WITH_AS(shape_of({.shard = 3}, 4, 4),
                       "4 ranks cannot be divided into groups of 3 (MeshOptions: replicate × "
                       "shard); hint: set replicate and shard so that replicate × shard is the "
                       "number of ranks, or leave one of the two at 0",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(shape_of({.shard = 2, .replicate = 3}, 4, 4),
                       doctest::Contains("3 groups of 2 ranks do not make 4 ranks"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(shape_of({.replicate = 3}, 4, 4),
                       doctest::Contains("4 ranks cannot be divided into 3 equal groups"),
                       InvalidArgument);
  for (const MeshOptions& wrong :
       {MeshOptions{.shard = 2, .replicate = 3}, MeshOptions{.shard = 5}, MeshOptions{.shard = -2},
        MeshOptions{.replicate = -1}, MeshOptions{.shard = -2, .replicate = -2}}) {
    CHECK_THROWS_AS(shape_of(wrong, 4, 4), InvalidArgument);
  }
}

TEST_CASE("a simulated mesh has any size, and its ranks agree") {
  const Mesh mesh = testing::simulated_mesh(1000);
  CHECK(mesh.world_size() == 1000);
  CHECK(mesh.size(Axis::kShard) == 1000);
  CHECK(mesh.size(Axis::kReplicate) == 1);
  mesh.agree("configuration", {"a", "b"});
  CHECK(mesh.exchange("names", "x").back() == "x");
}

}  // namespace
}  // namespace fsdp
