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

// A world of six: two replicas of three shards.
MeshParts two_by_three() {
  return {.control_plane = std::make_unique<SimulatedControlPlane>(0, 6),
          .topology = {.host = "here", .local_rank = 4},
          .control = of(6),
          .replicate = {.gather = of(2), .reduce = of(2)},
          .shard = {.gather = of(3), .reduce = of(3)}};
}

TEST_CASE("a mesh is what its parts say") {
  const Mesh mesh(std::make_shared<MeshState>(two_by_three()));
  CHECK(mesh.rank() == 0);
  CHECK(mesh.world_size() == 6);
  CHECK(mesh.size(Axis::kReplicate) == 2);
  CHECK(mesh.size(Axis::kShard) == 3);
  CHECK(mesh.host() == "here");
  CHECK(mesh.local_rank() == 4);
  CHECK(mesh.state().reduce_communicator(Axis::kReplicate).size() == 2);
  CHECK(mesh.state().control_communicator().size() == 6);
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
  CHECK_THROWS_WITH_AS(Mesh(std::make_shared<MeshState>(std::move(parts))),
                       "a mesh of 6 ranks with communicators of 2 × 3 (gather), 2 × 2 (reduce) and "
                       "6 (control); hint: the sizes of the axes multiply to the world's, for "
                       "gathers and for reductions",
                       InvalidArgument);
}

TEST_CASE("parts that are missing are refused") {
  MeshParts parts = two_by_three();
  parts.replicate.gather.reset();
  CHECK_THROWS_WITH_AS(Mesh(std::make_shared<MeshState>(std::move(parts))),
                       "a mesh without a control plane or without a communicator; hint: MeshParts "
                       "needs all of them; an axis of size one, too",
                       InvalidArgument);
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
