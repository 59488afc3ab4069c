// Tests ranks on several hosts that share memory inside each host. They are real processes on this
// machine, which acts as two hosts.
#include <doctest/doctest.h>

#include "launch.h"
#include "multiproc/hosts_on_loopback.h"

namespace fsdp::testing {
namespace {

// Returns the variables of four ranks, two on each host. The hosts share `directory`. `node`: the
// variable that has the number of the host.
std::vector<Environment> ranks_on_two_hosts(const std::string& directory,
                                            const std::string& node = "FSDP_NODE") {
  std::vector<Environment> environments = ranks_of_hosts(free_port());
  for (Environment& environment : environments) {
    environment[node] = environment["GROUP_RANK"];
    environment["XDG_RUNTIME_DIR"] = directory;
    environment["TEST_TIMEOUT_MS"] = "20000";
  }
  return environments;
}

std::vector<Process> start_sharing(const std::vector<Environment>& environments,
                                   const std::vector<std::string>& words) {
  std::vector<std::string> command{TORCH_RANK, "sharing-host"};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<Process> processes;
  for (const Environment& environment : environments) processes.emplace_back(command, environment);
  return processes;
}

std::vector<ProcessResult> run_sharing(const std::vector<Environment>& environments,
                                       const std::vector<std::string>& words) {
  std::vector<ProcessResult> results;
  for (Process& process : start_sharing(environments, words)) results.push_back(process.wait());
  return results;
}

TEST_CASE("two hosts of two ranks share memory inside each host, and leave nothing behind") {
  for (const std::string node : {"FSDP_NODE", "GROUP_RANK"}) {
    CAPTURE(node);
    const TemporaryDirectory directory;
    for (const ProcessResult& result :
         run_sharing(ranks_on_two_hosts(directory.path(), node), {"20"})) {
      CHECK(result.err == "");
      CHECK(result.out == "0.20 1.20 2.20 3.20\n");
      CHECK(result.code == 0);
    }
    CHECK(residue(directory.path()).empty());
  }
}

TEST_CASE("a rank that is killed is named on its host and on the other host") {
  for (const int dies : {0, 3}) {
    CAPTURE(dies);
    const TemporaryDirectory directory;
    const auto results = run_sharing(ranks_on_two_hosts(directory.path()),
                                     {"1000000", "kill", std::to_string(dies), "5"});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == dies) continue;
      CAPTURE(results[rank].err);
      CHECK(results[rank].code == 75);
      // The store ends with rank 0, so ranks of the other host may only see that it is lost.
      CHECK(results[rank].err.find(fmt::format("rank {}", dies)) != std::string::npos);
      if (dies == 3) CHECK(lines_with(results[rank].err, "rank 3 died: its process (pid ") == 1);
    }
  }
}

TEST_CASE("an error on one rank is the cause on both hosts that share memory") {
  const TemporaryDirectory directory;
  const auto results =
      run_sharing(ranks_on_two_hosts(directory.path()), {"1000000", "throw", "1", "5"});
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(results[rank].err);
    CHECK(results[rank].code == (rank == 1 ? 74 : 75));
    CHECK(lines_with(results[rank].err, "the disk is full") == 1);
    if (rank != 1) CHECK(lines_with(results[rank].err, "rank 1 gave up") == 1);
  }
}

TEST_CASE("a rank that is stopped is named by its host and by the other host") {
  const TemporaryDirectory directory;
  auto environments = ranks_on_two_hosts(directory.path());
  for (Environment& environment : environments) environment["TEST_TIMEOUT_MS"] = "2000";
  auto processes = start_sharing(environments, {"1000000", "stop", "2", "5"});
  for (const int rank : {0, 1, 3}) {
    const ProcessResult result = processes[rank].wait();
    CAPTURE(result.err);
    CHECK(result.code == 75);
    // Rank 3 waits for rank 2 inside its host, so the other host may miss both. All ranks report
    // the failure that is found first.
    CHECK(lines_with(result.err, ": rank 2") == 1);
    CHECK(lines_with(result.err, " did not ") == 1);
  }
}

TEST_CASE("an error of rank 0 at the start is the error of the ranks on other hosts") {
  const TemporaryDirectory directory;
  auto environments = ranks_on_two_hosts(directory.path());
  for (const int rank : {0, 1}) environments[rank]["XDG_RUNTIME_DIR"] = "/dev/null";
  for (const ProcessResult& result : run_sharing(environments, {"5"})) {
    CAPTURE(result.err);
    CHECK(result.code == 78);
    CHECK(lines_with(result.err, "\n") == 1);
    CHECK(lines_with(result.err, "rendezvous directory cannot be used") == 1);
  }
}

TEST_CASE("ranks that are not numbered host by host are refused on all hosts") {
  const TemporaryDirectory directory;
  auto environments = ranks_on_two_hosts(directory.path());
  for (int rank = 0; rank < 4; ++rank) {
    environments[rank]["FSDP_NODE"] = std::to_string(rank % 2);
    environments[rank]["LOCAL_RANK"] = std::to_string(rank / 2);
  }
  for (const ProcessResult& result : run_sharing(environments, {"5"})) {
    CAPTURE(result.err);
    CHECK(result.code == 78);
    CHECK(lines_with(result.err, "\n") == 1);
    CHECK(lines_with(result.err,
                     " (node 1), expected on the host of rank 0 (start of the job); hint: "
                     "start 2 ranks on every host, numbered host by host") == 1);
  }
}

}  // namespace
}  // namespace fsdp::testing
