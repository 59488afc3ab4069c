#include "fsdp/agreement.h"

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "support/run_ranks.h"

namespace fsdp {
namespace {

[[noreturn]] void fail_to_read() {
  throw IoError(ExitCode::kCorruptData, {.what = "the file is broken"});
}

TEST_CASE("work of all ranks is done when any of them goes on") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    std::atomic<int> done = 0;
    testing::run_ranks(world, [&](const Mesh& mesh) {
      const Outcome outcome = run_on_all_ranks(mesh, "counting", [&] { ++done; });
      CHECK(!outcome.failed());
      CHECK(done == world);
      throw_on_all_ranks(mesh, outcome);
    });
  }
}

TEST_CASE("an outcome is the lowest failing rank's, and that rank alone has the exception") {
  testing::run_ranks(3, [](const Mesh& mesh) {
    const Outcome outcome = run_on_all_ranks(mesh, "reading", [&] {
      if (mesh.rank() == 1) fail_to_read();
      if (mesh.rank() == 2) throw StateError({.what = "another reason"});
    });
    CHECK(outcome.code == ExitCode::kCorruptData);
    CHECK((outcome.mine != nullptr) == (mesh.rank() == 1));
  });
}

TEST_CASE("one rank throws what is wrong, the others leave with its code") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    const int failing = world - 1;
    const auto thrown = testing::run_ranks_to_end(world, [&](const Mesh& mesh) {
      run_or_throw_on_all_ranks(mesh, "reading", [&] {
        if (mesh.rank() == failing) fail_to_read();
      });
    });
    CHECK(thrown.first == failing);
    for (int rank = 0; rank < world; ++rank) {
      CAPTURE(rank);
      REQUIRE(thrown.of_rank[rank]);
      if (rank == failing) {
        CHECK_THROWS_AS(std::rethrow_exception(thrown.of_rank[rank]), IoError);
      } else {
        CHECK_THROWS_AS(std::rethrow_exception(thrown.of_rank[rank]), RefusedElsewhere);
      }
      try {
        std::rethrow_exception(thrown.of_rank[rank]);
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kCorruptData);
      }
    }
  }
}

TEST_CASE("a rank that works for long says so once, on itself") {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> warnings;
  const MeshOptions options{.on_event = [&](const MeshEvent& event) {
    const std::lock_guard lock(mutex);
    warnings.push_back(event.text.what + "; " + event.text.cause);
    changed.notify_all();
  }};
  testing::run_ranks(2,
                     [&](const Mesh& mesh) {
                       run_or_throw_on_all_ranks(mesh, "writing the model", [&] {
                         if (mesh.rank() == 0) return;
                         std::unique_lock lock(mutex);
                         changed.wait(lock, [&] { return !warnings.empty(); });
                       });
                     },
                     {.mesh = options});
  CHECK(warnings ==
        std::vector<std::string>{
            "rank 1 is still writing the model after 5 s; the other ranks wait for this rank"});
}

}  // namespace
}  // namespace fsdp
