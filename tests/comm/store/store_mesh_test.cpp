// Tests ranks on several hosts that share only a store.
#include "comm/store/store_mesh.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "comm/mesh_state.h"
#include "comm/support/collective_sweep.h"
#include "fsdp/error.h"
#include "support/cpu_streams.h"
#include "support/mismatch_text.h"
#include "support/store_ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using testing::MemoryStore;
using testing::rank_on_hosts;
using testing::run_at_store;

const std::vector<std::string> kNothing(4);

bool has_text(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

void meet(MeshParts& parts) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "meet");
  parts.control->barrier({.label = "meet"}, *stream);
}

// Waits for the other ranks. Returns the error text, or an empty string if all arrive.
std::string told_in_barrier(MeshParts& parts) {
  try {
    meet(parts);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("every collective gives exact values over a store, for every dtype and size") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {}, [](MeshParts& parts) {
          for (const testing::SweepCase& sweep_case : testing::all_cases(257)) {
            CAPTURE(testing::describe(sweep_case));
            for (const std::string& line : testing::sweep(*parts.control, sweep_case)) {
              FAIL_CHECK(line);
            }
          }
        }) == kNothing);
  CHECK(store.size() < 20);  // entries of past exchanges are deleted
}

TEST_CASE("ranks of several hosts exchange texts, and know where each of them is") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {.shard = 2}, [](MeshParts& parts) {
          ControlPlane& plane = *parts.control_plane;
          CHECK(parts.topology.local_rank == plane.rank() % 2);
          CHECK(parts.shape == MeshShape{.replicate = 2, .shard = 2});
          const auto texts =
              plane.exchange({.label = "text"}, std::string(100'000, 'a' + plane.rank()));
          for (int rank = 0; rank < 4; ++rank) {
            CHECK(texts[rank] == std::string(100'000, 'a' + rank));
            CHECK_FALSE(plane.end_of(rank));
          }
          plane.agree({.label = "lines"}, {"a", "b"});
          CHECK_THROWS_AS(plane.agree({.label = "lines"}, {std::to_string(plane.rank())}),
                          CommError);
        }) == kNothing);
}

// Returns a mesh whose collectives also use the store.
Mesh mesh_over_store(MeshParts& parts) {
  const int rank = parts.control_plane->rank();
  parts.world.gather = parts.control->split(0, rank);
  parts.world.reduce = parts.control->split(0, rank);
  return mesh_of(std::move(parts));
}

TEST_CASE("parts of a mesh over hosts compare what their own ranks issue, and nothing else") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {.shard = 4}, [](MeshParts& parts) {
          const Mesh mesh = mesh_over_store(parts);
          const int color = mesh.rank() % 2;  // each part contains ranks of both hosts
          const Mesh part = mesh.part(color);
          CHECK(part.gather(std::array<int64_t, 1>{mesh.rank()}) ==
                std::vector<int64_t>{color, color + 2});
          ControlPlane& plane = *state_of(part).parts().control_plane;
          const auto post = [&](std::string_view label) {
            const CollectiveTag tag = state_of(part).order().next(Operation::kBarrier, 0, label);
            plane.post({.record = make_record({.tag = tag}), .communicator = 1});
          };
          for (int i = 0; i < 3; ++i) post(color == 0 ? "first" : "second");
          mesh.sum(1);
          post(mesh.rank() == 3 ? "odd" : "even");
          while (!plane.first_failure()) std::this_thread::sleep_for(milliseconds(5));
          // Collective 1 was a gather that both ranks have issued.
          CHECK(has_text(plane.first_failure()->text.what,
                         "rank 1 issued barrier 'even' #5, rank 3 issued barrier 'odd' #5"));
        }) == kNothing);
}

TEST_CASE("a failure on one host is heard of on all, by the first who looks") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {}, [](MeshParts& parts) {
          ControlPlane& plane = *parts.control_plane;
          meet(parts);
          if (plane.rank() == 3) plane.abort("the disk is full");
          CHECK(has_text(told_in_barrier(parts), "rank 3 gave up"));
          REQUIRE(plane.first_failure());
          CHECK(plane.first_failure()->rank == 3);
          CHECK(plane.first_failure()->text.cause == "the disk is full");
        }) == kNothing);
}

TEST_CASE("a rank that has finished is missed by those who still need it") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {}, [](MeshParts& parts) {
          meet(parts);
          if (parts.control_plane->rank() == 2) return;
          CHECK(has_text(told_in_barrier(parts), "rank 2 "));
          CHECK(parts.control_plane->end_of(2) == PeerEnd::kFinished);
        }) == kNothing);
}

TEST_CASE("a rank that does not come is named when its time is over") {
  MemoryStore store;
  std::atomic<int> left = 3;
  CHECK(run_at_store(store, 4, {.timeout = milliseconds(400)}, [&](MeshParts& parts) {
          meet(parts);
          if (parts.control_plane->rank() == 1) {
            while (left > 0) std::this_thread::sleep_for(milliseconds(5));
            return;
          }
          CHECK(has_text(told_in_barrier(parts), "rank 1 did not arrive within 0.4 s"));
          --left;
        }) == kNothing);
}

TEST_CASE("a host that is gone as a whole is missed when the time is over") {
  MemoryStore store;
  std::atomic<int> left = 2;
  CHECK(run_at_store(store, 4, {.timeout = milliseconds(1500)}, [&](MeshParts& parts) {
          meet(parts);
          const int rank = parts.control_plane->rank();
          if (rank >= 2) {  // drops the rank's writes, as if it hung
            store.mute(rank);
            while (left > 0) std::this_thread::sleep_for(milliseconds(5));
            return;
          }
          while (!parts.control_plane->first_failure()) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          const Failure failure = *parts.control_plane->first_failure();
          CHECK(failure.rank >= 2);
          CHECK(has_text(failure.text.what, "did not report for 1.5 s"));
          CHECK(has_text(failure.text.where, "host "));
          --left;
        }) == kNothing);
}

TEST_CASE("a store that is gone ends the job, with the rank that served it") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {}, [&](MeshParts& parts) {
          told_in_barrier(parts);  // waits until all ranks have arrived
          if (parts.control_plane->rank() == 0) store.end();
          while (told_in_barrier(parts).empty()) continue;
          while (!parts.control_plane->first_failure()) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          CHECK(parts.control_plane->first_failure()->rank == 0);
          CHECK(has_text(parts.control_plane->first_failure()->text.what,
                         "the ranks' store on rank 0 is lost"));
        }) == kNothing);
}

TEST_CASE("what ranks have posted is read on other hosts when one of them says that it is late") {
  MemoryStore store;
  CHECK(run_at_store(store, 4, {}, [](MeshParts& parts) {
          ControlPlane& plane = *parts.control_plane;
          uint64_t place = 0;
          for (const int late : {0, 3}) {
            const uint64_t before = place;
            const auto end_of = [&](int rank) { return before + 5u + static_cast<uint64_t>(rank); };
            while (place < end_of(plane.rank())) {
              ++place;
              plane.post(
                  {.record = make_record({.tag = {.sequence = place}}), .communicator = place});
            }
            meet(parts);
            if (plane.rank() == late) plane.share_posted();
            for (int rank = 0; rank < 4; ++rank) {
              const uint64_t last = end_of(rank);
              while (plane.last_posted(rank, last) < last)
                std::this_thread::sleep_for(milliseconds(5));
              const auto posted = plane.posted(rank, last);
              CHECK((posted && posted->communicator == last));
              CHECK_FALSE(plane.posted(rank, last + 1));
            }
            meet(parts);
            for (const uint64_t end = end_of(3); place < end;) {  // all ranks reach the same place
              ++place;
              plane.post(
                  {.record = make_record({.tag = {.sequence = place}}), .communicator = place});
            }
          }
        }) == kNothing);
}

TEST_CASE("ranks of several hosts that issue different things are told so, though none is late") {
  struct Way {
    int places;
    std::string_view told, end;
  };
  for (const auto& [places, told, end] :
       {Way{20, "issued barrier 'a' #7, rank 3 issued barrier 'b' #7", "collective #7"},
        Way{20 + PostedCollectives::kKept, "and 3 did not issue the same",
            "at an earlier collective, which is no longer recorded"}}) {
    MemoryStore store;
    CHECK(run_at_store(store, 4, {}, [&, places = places, told = told, end = end](auto& parts) {
            ControlPlane& plane = *parts.control_plane;
            for (int place = 1; place <= places; ++place) {
              const bool differs = plane.rank() == 3 && place == 7;
              const CollectiveTag tag{.sequence = static_cast<uint64_t>(place),
                                      .label = differs ? "b" : "a"};
              plane.post({.record = make_record({.tag = tag}), .communicator = 1});
            }
            while (!plane.first_failure()) std::this_thread::sleep_for(milliseconds(5));
            const Failure failure = *plane.first_failure();
            CAPTURE(failure.text.what);
            CHECK(failure.code == ExitCode::kPeerFailed);
            CHECK(failure.text.what.starts_with(testing::kDisagree + "rank"));
            CHECK(has_text(failure.text.what, told));
            CHECK(failure.text.where == end);
          }) == kNothing);
  }
}

TEST_CASE("ranks that do not meet at a store are all refused, with the reason") {
  const auto refused = [](const std::vector<LaunchEnvironment>& environments) {
    MemoryStore store;
    return run_at_store(store, environments, {.timeout = milliseconds(300)}, [](MeshParts& parts) {
      meet(parts);  // a rank that arrives late is refused, and so are all others
      while (!parts.control_plane->first_failure()) std::this_thread::sleep_for(milliseconds(5));
      parts.control_plane->throw_first_failure({});
    });
  };
  for (const std::string& told :
       refused({rank_on_hosts(0, 4, 2), rank_on_hosts(1, 4, 2), rank_on_hosts(3, 4, 2)})) {
    CHECK(has_text(told, "rank 2 of 4 did not arrive within 0.3 s"));
  }
  for (const std::string& told :
       refused({rank_on_hosts(0, 2, 2), rank_on_hosts(1, 2, 2), rank_on_hosts(1, 2, 2)})) {
    CHECK(has_text(told, "two processes have RANK=1"));
  }
  const auto told = refused({rank_on_hosts(0, 2, 2), rank_on_hosts(1, 4, 2)});
  CHECK(has_text(told[0], "but WORLD_SIZE=4 on rank 1"));
  CHECK(has_text(told[1], "WORLD_SIZE="));
}

}  // namespace
}  // namespace fsdp
