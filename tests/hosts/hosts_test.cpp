// Tests ranks on the CPUs of two hosts. They are processes of this machine, which connect over its
// loopback. tools/test hosts runs the same program in network namespaces, with more cases.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "multiproc/hosts_on_loopback.h"
#include "support/mismatch_text.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

// Returns the variables of four ranks on two hosts, which meet in the folder.
std::vector<Environment> ranks_in(const ScratchFolder& folder) {
  std::vector<Environment> environments = ranks_of_hosts(free_port());
  for (Environment& environment : environments) {
    const std::string host = environment["GROUP_RANK"];
    const std::filesystem::path own = folder / ("host-" + host);
    std::filesystem::create_directory(own);
    environment["FSDP_NODE"] = host;
    environment["XDG_RUNTIME_DIR"] = own;  // the ranks of a host meet there
    environment["OMP_NUM_THREADS"] = "1";
  }
  return environments;
}

std::vector<ProcessResult> run_on_hosts(const std::vector<std::string>& words,
                                        const std::string& timeout_ms = "20000") {
  const ScratchFolder folder;
  std::vector<std::string> command{HOSTS_RANK};
  command.insert(command.end(), words.begin(), words.end());
  return run_ranks_by_hand(command, ranks_in(folder), timeout_ms);
}

void check_success(const std::vector<ProcessResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(results[rank].err);
    CHECK(results[rank].code == 0);
    // Rank 0 notes by which addresses the hosts are connected.
    const bool has_note = results[rank].err.find("4 ranks are connected by Gloo on ") == 12;
    CHECK((rank == 0 ? has_note : results[rank].err.empty()));
  }
}

TEST_CASE("every collective gives exact values on two hosts, for every dtype and size") {
  const auto results = run_on_hosts({"sweep", "20011"});
  check_success(results);
  for (const ProcessResult& result : results) CHECK(result.out == "");
}

TEST_CASE("ranks of two hosts that disagree are all told what both issued") {
  const auto results = run_on_hosts({"mismatch", "count", "3"});
  for (const ProcessResult& result : results) {
    CAPTURE(result.err);
    CHECK(result.code == 75);
    CHECK(result.err.find(kDisagree) != std::string::npos);
    // The other rank is rank 2, on the same host, or rank 1, which exchanges data with rank 3.
    CHECK(result.err.find("issued all_reduce (sum) of 8 float32") != std::string::npos);
    CHECK(result.err.find("rank 3 issued all_reduce (sum) of 4 float32") != std::string::npos);
  }
}

TEST_CASE("a stopped rank is named on both hosts, and no rank that waits for it") {
  const ScratchFolder folder;
  std::vector<Process> processes;
  for (Environment& environment : ranks_in(folder)) {
    environment["TEST_TIMEOUT_MS"] = "3000";
    processes.emplace_back(
        std::vector<std::string>{HOSTS_RANK, "steps", "1000000", "stop", "3", "20"}, environment);
  }
  for (int rank = 0; rank < 3; ++rank) {
    const ProcessResult result = processes[static_cast<size_t>(rank)].wait();
    CAPTURE(result.err);
    CHECK(result.code == 75);
    CHECK(result.err.find(": rank 3 did not ") != std::string::npos);
  }
}

TEST_CASE("a rank that dies before the hosts connect is named at once") {
  // The processes may run for 150 s, so a rank that waits for the time-out fails the test.
  const auto results = run_on_hosts({"killed-before-connection", "3"}, "600000");
  for (int rank = 0; rank < 3; ++rank) {
    const ProcessResult& result = results[static_cast<size_t>(rank)];
    CAPTURE(result.err);
    CHECK(result.code == 75);
    CHECK(result.err.find("rank 3 died: its process (pid ") != std::string::npos);
  }
}

TEST_CASE("a GPT trains on two hosts with the bits of threads that sum in the order of hosts") {
  const ProcessResult expected = run_process({HOSTS_RANK, "reference", "gpt", "5", "1", "4", "2"});
  REQUIRE(expected.code == 0);
  const auto results = run_on_hosts({"train", "gpt", "5", "1"});
  check_success(results);
  CHECK(results[0].out == expected.out);
  CHECK(expected.out.find("losses 0x1.") != std::string::npos);
}

}  // namespace
}  // namespace fsdp::testing
