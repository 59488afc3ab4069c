#include <doctest/doctest.h>

#include "comm/mesh_state.h"
#include "comm/support/reduction_bits.h"
#include "launch.h"
#include "support/run_ranks.h"
#include "support/sanitizers.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kLarge = (kSanitized ? 1 << 14 : 1 << 20) + 1;

TEST_CASE("every collective gives exact values on process ranks, for every dtype and size") {
  for (const int world : {1, 2, 3, 4, 7}) {
    CAPTURE(world);
    const ProcessResult result = fsdp_run(world, {"sweep", std::to_string(kLarge)});
    CHECK(result.out == "");
    CHECK(result.err == "");
    CHECK(result.code == 0);
  }
  CHECK(residue().empty());
}

TEST_CASE("groups of processes give exact values beside each other and beside all ranks") {
  for (const int world : {2, 5}) {
    CAPTURE(world);
    const ProcessResult result = fsdp_run(world, {"sweep-groups", std::to_string(kLarge / 4)});
    CHECK(result.out == "");
    CHECK(result.err == "");
    CHECK(result.code == 0);
  }
  CHECK(residue().empty());
}

TEST_CASE("processes in parts of a mesh do different things, and the death of one ends all") {
  const ProcessResult result = fsdp_run(5, {"parts"});
  CHECK(result.err == "");
  CHECK(result.code == 0);
  CHECK(lines_with(result.out, " of 2 in part ") == 4);
  CHECK(lines_with(result.out, "rank 4 is 0 of 1 in part 2, all 5") == 1);
  CHECK(lines_with(result.out, ", all 5") == 5);

  const ProcessResult killed = fsdp_run(4, {"parts", "kill", "3"}, {{"TEST_TIMEOUT_MS", "60000"}});
  CAPTURE(killed.err);
  CHECK(killed.code == 75);
  CHECK(killed.seconds < 6 * kPatience);
  for (const char* survivor : {"0/4", "1/4", "2/4"}) {
    CHECK(lines_with(killed.err, fmt::format("fsdp: error[75] rank {} host ", survivor)) == 1);
  }
  CHECK(lines_with(killed.err, "rank 3 was killed by signal 9 (SIGKILL)") == 4);
  CHECK(residue().empty());
}

TEST_CASE("processes and threads give the same bits, whatever memory is reduced") {
  for (const int world : {2, 3, 5}) {
    for (const int64_t numel : {5, 1009, 200'003}) {
      CAPTURE(world);
      CAPTURE(numel);
      std::vector<std::string> bits(world);
      run_ranks(world, [&](const Mesh& mesh) {
        bits[mesh.rank()] = reduction_bits(state_of(mesh).reduce_communicator(Axis::kShard), numel);
      });
      const ProcessResult result = fsdp_run(world, {"bits", std::to_string(numel)});
      CHECK(result.code == 0);
      CHECK(lines_with(result.out, "bits " + bits[0]) == world);
      for (const std::string& each : bits) CHECK(each == bits[0]);
    }
  }
}

TEST_CASE("a write to a view of the ranks' memory is told, reaches no rank and does not stay") {
  const ProcessResult result = fsdp_run(3, {"stray-write"});
  CHECK(result.err == "");
  CHECK(result.code == 0);
  CHECK(lines_with(result.out, ": 0 wrong") == 3);
}

TEST_CASE("more processes than cores work") {
  const ProcessResult result = fsdp_run(16, {"steps", "50"});
  CHECK(result.err == "");
  CHECK(lines_with(result.out, "of 16 done") == 16);
}

}  // namespace
}  // namespace fsdp::testing
