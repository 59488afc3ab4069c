// Kills a rank during a step. The others must report which rank died and why, and end. No files may
// remain.
#include <doctest/doctest.h>

#include "comm/support/steps_apart.h"
#include "launch.h"
#include "support/mismatch_text.h"
#include "support/sanitizers.h"

namespace fsdp::testing {
namespace {

struct Death {
  std::string fault;
  std::string cause;  // the text of the survivors and of fsdp-run
  int code;           // exit code of fsdp-run
};

const std::vector<Death> kDeaths{
    {"kill", "rank 1 was killed by signal 9 (SIGKILL)", 75},
    {"abort", "rank 1 was killed by signal 6 (SIGABRT)", 75},
    {"segv", "rank 1 was killed by signal 11 (SIGSEGV)", 75},
    {"terminate", "rank 1 was killed by signal 6 (SIGABRT)", 75},
    {"exit-0", "rank 1 left early with code 0", 75},
    {"_exit-0", "rank 1 left early with code 0", 75},
    {"exit-3", "rank 1 ended with code 3", 3},
};

// Sanitizers turn some signals into exits.
bool changed_by_sanitizer(const std::string& fault) {
  return kSanitized && (fault == "segv" || fault == "abort");
}

TEST_CASE("a rank that dies is named with its cause by all survivors and by fsdp-run") {
  for (const Death& death : kDeaths) {
    if (changed_by_sanitizer(death.fault)) continue;
    CAPTURE(death.fault);
    const ProcessResult result =
        fsdp_run(4, {"steps", "100000", death.fault, "1", "20"}, {{"TEST_TIMEOUT_MS", "60000"}});
    CAPTURE(result.err);
    CHECK(result.code == death.code);
    CHECK(result.seconds < 6 * kPatience);
    for (const char* survivor : {"0/4", "2/4", "3/4"}) {
      CHECK(lines_with(result.err, fmt::format("fsdp: error[75] rank {} host ", survivor)) == 1);
    }
    CHECK(lines_with(result.err, death.cause) == 4);  // three survivors and the root cause
    CHECK(lines_with(result.err, fmt::format("fsdp: error[{}] rank 1/4 host ", death.code)) == 1);
    // A survivor is in step 20. It may also be in step 19, because gathers are issued ahead.
    CHECK(lines_with(result.err, " step 20: ") + lines_with(result.err, " step 19: ") == 3);
    CHECK(residue().empty());
  }
}

TEST_CASE("an exception in a thread of its own ends as one line, too") {
  const ProcessResult result = fsdp_run(2, {"steps", "100000", "terminate", "1", "10"});
  CAPTURE(result.err);
  CHECK(result.err.find("fsdp: error[70] rank 1/2 host ") == 0);
  CHECK(result.err.find(": lost\n") != std::string::npos);
  CHECK(result.err.find("terminate called") == std::string::npos);
}

TEST_CASE("an exception on one rank is the cause that all report, and its code is the job's") {
  const ProcessResult result = fsdp_run(3, {"steps", "100000", "throw", "2", "10"});
  CAPTURE(result.err);
  CHECK(result.code == 65);
  CHECK(result.err.find("fsdp: error[65] rank 2/3 host ") == 0);
  CHECK(lines_with(result.err, "rank 2 gave up (") == 2);
  // The lines are its own and those of two survivors.
  CHECK(lines_with(result.err, "a file is broken") == 3);
  CHECK(lines_with(result.err,
                   "rank 2 ended with code 65; hint: see the error above; a restart alone") == 1);
  CHECK(result.err.find("terminate called") == std::string::npos);
  CHECK(result.seconds < 6 * kPatience);
}

TEST_CASE("a rank that returns from its program while others need it has left early") {
  const ProcessResult result = fsdp_run(3, {"steps", "100000", "return-0", "0", "10"});
  CAPTURE(result.err);
  CHECK(result.code == 75);
  CHECK(lines_with(result.err, "rank 0 left while other ranks still need it") == 2);
  CHECK(lines_with(result.err, "fsdp: error[75] rank 0/3 host ") == 1);
  CHECK(lines_with(result.err, "rank 0 left early with code 0") == 1);
}

TEST_CASE("a stopped rank is named when the time is over, and does not stay") {
  const ProcessResult result =
      fsdp_run(3, {"steps", "100000", "stop", "1", "10"}, {{"TEST_TIMEOUT_MS", "700"}});
  CAPTURE(result.err);
  CHECK(result.code == 75);
  CHECK(lines_with(result.err, "rank 1 did not arrive within 0.7 s (") == 3);
  CHECK(lines_with(result.err, "its process is alive, but stopped, stuck, slow") == 3);
  CHECK(result.seconds < 8 * kPatience);
}

TEST_CASE("a rank that comes back when the time is over is named for that, and not said to live") {
  const ProcessResult result =
      fsdp_run(3, {"steps", "100000", "pause", "1", "10"}, {{"TEST_TIMEOUT_MS", "400"}});
  CAPTURE(result.err);
  CHECK(result.code == 75);
  const size_t last = result.err.rfind("fsdp: error[75] ");
  REQUIRE(last != std::string::npos);
  const std::string line = result.err.substr(last);
  CHECK(line.find("rank 1 did not arrive within 0.4 s (") != std::string::npos);
  CHECK(line.find("; rank 1 ended with code 75; hint: attach a debugger to that rank") !=
        std::string::npos);
}

TEST_CASE("a slow rank is named in one warning line, and the run goes on") {
  const ProcessResult result =
      fsdp_run(3, {"steps", "20", "pause", "1", "10"}, {{"TEST_TIMEOUT_MS", "3000"}});
  CAPTURE(result.err);
  CHECK(result.code == 0);
  CHECK(lines_with(result.out, "of 3 done\n") == 3);
  CHECK(lines_with(result.err, "\n") == 1);
  CHECK(result.err.find("fsdp: warning rank ") == 0);
  CHECK(result.err.find(
            ": rank 1 is slow: this rank has waited 1.0 s for it (all_reduce (sum) of 1 float32 "
            "'norm' #") != std::string::npos);
}

TEST_CASE("without a launcher survivors still notice a death within a second") {
  const TemporaryDirectory directory;
  std::vector<Environment> environments;
  for (int rank = 0; rank < 3; ++rank) {
    environments.push_back(torchrun_rank(rank, 3, directory.path()));
  }
  const auto results = run_by_hand(environments, {"steps", "1000000", "kill", "1", "100"});
  CHECK(results[1].signal == SIGKILL);
  for (const int survivor : {0, 2}) {
    CHECK(results[survivor].code == 75);
    CHECK(results[survivor].err.find("rank 1 died: its process (pid ") != std::string::npos);
    CHECK(results[survivor].seconds - results[1].seconds < kPatience);
  }
  CHECK(residue(directory.path()).empty());
}

TEST_CASE("processes that issue different collectives end with code 75 and both sides on all") {
  const std::string ours = "all_reduce (sum) of 8 float32 'norm' #7";
  const std::map<std::string, std::string> theirs{
      {"count", "all_reduce (sum) of 4 float32 'norm' #7"},
      {"dtype", "all_reduce (sum) of 8 int32 'norm' #7"},
      {"reduce-op", "all_reduce (max) of 8 float32 'norm' #7"},
      {"operation", "barrier 'norm' #7"},
      {"order", "all_reduce (sum) of 8 float32 'norm' #8"}};
  for (const auto& [what, issued] : theirs) {
    const ProcessResult result = fsdp_run(3, {"mismatch", what, "2"});
    CAPTURE(what);
    CAPTURE(result.err);
    CHECK(result.code == 75);
    // Three ranks and the launcher report this.
    CHECK(lines_with(result.err, kDisagree + "rank 0 issued " + ours + ", rank 2 issued " + issued +
                                     " (collective ") == 4);
    CHECK(lines_with(result.err, "fsdp: error[75] rank ") == 4);
  }
}

TEST_CASE("processes that use names of any length in another order are told so") {
  for (const int length : {10, 47, 48, 100, 200}) {
    const ProcessResult result = fsdp_run(2, {"mismatch", fmt::format("name{}", length), "1"});
    CAPTURE(length);
    CAPTURE(result.err);
    CHECK(result.code == 75);
    CHECK(lines_with(result.err, kDisagree + "rank 0 issued all_reduce") == 3);
  }
}

TEST_CASE("processes that part ways into different communicators end with code 75 and both sides") {
  for (const std::string_view way : kWaysApart) {
    const ProcessResult result =
        fsdp_run(3, {"apart", std::string(way), "1"}, {{"TEST_TIMEOUT_MS", "600000"}});
    CAPTURE(way);
    CAPTURE(result.err);
    CHECK(result.code == 75);
    // Three ranks and the launcher report this.
    CHECK(lines_with(result.err, kDisagree + "rank ") == 4);
    CHECK(lines_with(result.err, ", on different communicators)") == 4);
  }
}

TEST_CASE("ranks that disagree end with code 78 on all") {
  const ProcessResult result = fsdp_run(3, {"disagree", "1"});
  CAPTURE(result.err);
  CHECK(result.code == 78);
  CHECK(lines_with(result.err, "fsdp: error[78] rank ") == 4);
  CHECK(lines_with(result.err,
                   "ranks do not agree on the configuration: rank 0 has 'layers 2', "
                   "rank 1 has 'layers 3' (configuration, line 2)") == 3);
}

}  // namespace
}  // namespace fsdp::testing
