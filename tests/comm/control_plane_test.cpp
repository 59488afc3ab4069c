#include "comm/job/control_plane.h"

#include <doctest/doctest.h>

#include <functional>
#include <thread>

#include "comm/local/local_mesh.h"
#include "comm/simulated/simulated_control_plane.h"

namespace fsdp {
namespace {

// Runs body(plane) for each of `world` thread ranks. Each rank has its own plane.
void on_local_planes(int world, const std::function<void(ControlPlane&)>& body) {
  std::vector<std::thread> threads;
  for (MeshParts& parts : local_mesh(world, {})) {
    threads.emplace_back([&body, parts = std::move(parts)] { body(*parts.control_plane); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs the body on every kind of control plane, at several world sizes.
void on_every_plane(const std::function<void(ControlPlane&)>& body) {
  for (const int world : {1, 2, 3, 5}) {
    on_local_planes(world, body);
    SimulatedControlPlane simulated(0, world);
    body(simulated);
  }
}

// Returns the text of the failure that throw_first_failure throws.
std::string thrown_text(const ControlPlane& plane, std::string_view where) {
  try {
    plane.throw_first_failure(where);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("texts of any lengths reach every rank, in rank order") {
  on_local_planes(3, [](ControlPlane& plane) {
    for (const size_t length : {0, 1, 1000, 3'000'000}) {
      const std::string mine(length * plane.rank(), static_cast<char>('a' + plane.rank()));
      const auto texts = plane.exchange({.label = "text"}, mine);
      REQUIRE(texts.size() == 3);
      for (int rank = 0; rank < 3; ++rank) {
        CHECK(texts[rank] == std::string(length * rank, static_cast<char>('a' + rank)));
      }
    }
  });
  SimulatedControlPlane simulated(1, 3);
  CHECK(simulated.exchange({.label = "text"}, "alike") == std::vector<std::string>(3, "alike"));
  CHECK(simulated.rank() == 1);
}

TEST_CASE("all ranks live, and nothing has failed, until something does") {
  on_every_plane([](ControlPlane& plane) {
    plane.agree({.label = "lines"}, {"a", "b"});
    CHECK_FALSE(plane.first_failure().has_value());
    CHECK(thrown_text(plane, "here") ==
          "fsdp tried to report a failed rank, but no rank failed; hint: report this as a bug of "
          "fsdp");
    for (int rank = 0; rank < plane.world_size(); ++rank) CHECK_FALSE(plane.end_of(rank));
    plane.agree({.label = "end"}, {});  // no rank ends before all ranks have checked
  });
}

TEST_CASE("the first failure stands, and is what every later call throws") {
  on_every_plane([](ControlPlane& plane) {
    if (plane.rank() == 0) {
      plane.fail({.rank = 2, .code = ExitCode::kIoError, .text = {.what = "the first"}});
      plane.fail({.rank = 1, .text = {.what = "the second"}});
      plane.abort("the third");
    }
    while (!plane.first_failure()) std::this_thread::yield();
    CHECK(plane.first_failure()->rank == 2);
    CHECK(thrown_text(plane, "here") == "the first (here)");
    CHECK_THROWS_AS(plane.exchange({.label = "text"}, ""), CommError);
  });
}

TEST_CASE("a rank that aborts is named with its cause") {
  on_every_plane([](ControlPlane& plane) {
    if (plane.rank() == 0) plane.abort("the disk is full");
    while (!plane.first_failure()) std::this_thread::yield();
    CHECK(thrown_text(plane, "step 3") ==
          "rank 0 gave up (step 3); the disk is full; hint: see what rank 0 printed");
  });
}

TEST_CASE("a rank whose control plane is gone has finished") {
  std::vector<MeshParts> parts = local_mesh(2, {});
  CHECK_FALSE(parts[0].control_plane->end_of(1));
  parts.pop_back();
  CHECK(parts[0].control_plane->end_of(1) == PeerEnd::kFinished);
  CHECK_FALSE(parts[0].control_plane->first_failure());
}

TEST_CASE("a rank whose control plane an exception destroys has failed") {
  std::vector<MeshParts> parts = local_mesh(2, {});
  try {
    const MeshParts leaving = std::move(parts.back());
    parts.pop_back();
    throw 1;
  } catch (int) {
  }
  REQUIRE(parts[0].control_plane->first_failure());
  CHECK(parts[0].control_plane->first_failure()->rank == 1);
}

}  // namespace
}  // namespace fsdp
