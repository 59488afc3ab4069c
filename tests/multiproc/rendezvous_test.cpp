// Starts ranks by hand on one host, as torchrun does. They must connect without a port, or all
// refuse.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "comm/rendezvous/rendezvous_messages.h"
#include "comm/rendezvous/unix_socket.h"
#include "launch.h"
#include "multiproc/error_texts.h"

namespace fsdp::testing {
namespace {

std::vector<Environment> torchrun(int world, const std::string& directory) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < world; ++rank) {
    environments.push_back(torchrun_rank(rank, world, directory));
  }
  return environments;
}

void expect_refused(const std::vector<ProcessResult>& results, const std::string& text) {
  for (const ProcessResult& result : results) {
    CAPTURE(result.err);
    CHECK(result.code == 78);
    CHECK(result.seconds < 10 * kPatience);
    CHECK(lines_with(result.err, "\n") == 1);
    CHECK(result.err.find("fsdp: error[78] rank ") == 0);
    CHECK(result.err.find(text) != std::string::npos);
  }
}

TEST_CASE("torchrun's variables are enough, and nothing is left behind") {
  for (const int world : {1, 2, 3, 5}) {
    const TemporaryDirectory directory;
    const auto results = run_by_hand(torchrun(world, directory.path()), {"steps", "20"});
    for (const ProcessResult& result : results) {
      CHECK(result.err == "");
      CHECK(result.code == 0);
    }
    CHECK(residue(directory.path()).empty());
  }
}

TEST_CASE("ranks that start in any order meet, also twice in a row") {
  const TemporaryDirectory directory;
  auto environments = torchrun(3, directory.path());
  std::swap(environments[0], environments[2]);
  for (int i = 0; i < 2; ++i) {
    for (const ProcessResult& result : run_by_hand(environments, {"steps", "5"})) {
      CHECK(result.code == 0);
    }
  }
}

TEST_CASE("what a killed start left in the directory does not matter to the next") {
  const TemporaryDirectory directory;
  const auto environments = torchrun(2, directory.path());
  {
    const Process alone({RANK_PROGRAM, "steps", "5"}, environments[0]);
    while (residue(directory.path()).empty()) usleep(1000);
  }
  CHECK(residue(directory.path()).size() == 1);
  for (const ProcessResult& result : run_by_hand(environments, {"steps", "5"})) {
    CHECK(result.code == 0);
  }
  CHECK(residue(directory.path()).empty());
}

TEST_CASE("what killed starts of other jobs left goes with a later start, once it is old") {
  const TemporaryDirectory directory;
  std::vector<std::filesystem::path> known;
  // Starts rank 0 of another job, waits until it listens in its directory, and records the
  // directory.
  const auto start = [&](const char* port) {
    auto environment = torchrun_rank(0, 2, directory.path());
    environment["MASTER_PORT"] = port;
    Process alone({RANK_PROGRAM, "steps", "5"}, environment);
    REQUIRE(eventually([&] { return residue(directory.path()).size() > known.size(); }));
    for (const std::string& name : residue(directory.path())) {
      const auto path = std::filesystem::path(directory.path()) / name;
      if (std::ranges::find(known, path) != known.end()) continue;
      REQUIRE(eventually([&] { return std::filesystem::exists(path / kRendezvousSocket); }));
      known.push_back(path);
    }
    return alone;
  };
  { const Process killed = start("29512"); }
  { const Process killed = start("29513"); }
  const Process alive = start("29514");
  ::kill(alive.pid(), SIGSTOP);  // a stopped process keeps its lock and cannot give up
  REQUIRE(known.size() == 3);
  for (const int old : {1, 2}) {
    last_write_time(known[old], last_write_time(known[old]) - std::chrono::minutes(2));
  }
  for (const ProcessResult& result : run_by_hand(torchrun(2, directory.path()), {"steps", "5"})) {
    CHECK(result.code == 0);
  }
  CHECK(std::filesystem::exists(known[0]));
  CHECK_FALSE(std::filesystem::exists(known[1]));
  CHECK(std::filesystem::exists(known[2]));
}

TEST_CASE("a missing rank is named by those that came") {
  const TemporaryDirectory directory;
  auto environments = torchrun(3, directory.path());
  environments.erase(environments.begin() + 1);
  for (Environment& environment : environments) environment["TEST_TIMEOUT_MS"] = "1500";
  expect_refused(run_by_hand(environments, {"steps", "5"}),
                 "rank 1 of 3 did not arrive within 1.5 s");
  CHECK(residue(directory.path()).empty());
}

TEST_CASE("of many missing ranks some are named and the others counted") {
  const TemporaryDirectory directory;
  Environment first = torchrun_rank(0, 65000, directory.path());
  first["TEST_TIMEOUT_MS"] = "500";
  expect_refused(run_by_hand({first}, {"steps", "5"}),
                 "rank 1, 2, 3, 4, 5, 6, 7, 8 and 64991 more of 65000 did not arrive within 0.5 s");
}

TEST_CASE("a missing rank 0 is named by those that came") {
  const TemporaryDirectory directory;
  auto environments = torchrun(3, directory.path());
  environments.erase(environments.begin());
  for (Environment& environment : environments) environment["TEST_TIMEOUT_MS"] = "500";
  expect_refused(run_by_hand(environments, {"steps", "5"}),
                 "rank 0 of 3 did not arrive within 0.5 s");
}

TEST_CASE("two processes with one rank are refused, and all others with them") {
  for (const int twice : {0, 1}) {
    const TemporaryDirectory directory;
    auto environments = torchrun(2, directory.path());
    environments.push_back(environments[twice]);
    expect_refused(run_by_hand(environments, {"steps", "5"}), two_processes(twice));
    CHECK(residue(directory.path()).empty());
  }
}

TEST_CASE(
    "a second process of a rank that comes when all have begun is refused, and the job, too") {
  for (const int twice : {0, 1}) {
    CAPTURE(twice);
    const TemporaryDirectory directory, marks;
    auto environments = torchrun(2, directory.path());
    const auto latecomer = environments[twice];
    const std::vector<std::string> command{RANK_PROGRAM, "steps", "1000000000"};
    std::vector<Process> processes;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string mark = fmt::format("{}/{}", marks.path(), rank);
      environments[rank]["TEST_BEGUN"] = mark;
      processes.emplace_back(command, environments[rank]);
    }
    REQUIRE(eventually([&] { return residue(marks.path()).size() == 2; }));
    processes.emplace_back(command, latecomer);
    std::vector<ProcessResult> results;
    for (Process& process : processes) results.push_back(process.wait());
    for (const ProcessResult& result : results) {
      CAPTURE(result.err);
      CHECK(result.code == 78);
      CHECK(lines_with(result.err, "\n") == 1);
      CHECK(result.err.find("fsdp: error[78] rank ") == 0);
      CHECK(result.err.find(": " + two_processes(twice)) != std::string::npos);
    }
    CHECK(residue(directory.path()).empty());
  }
}

TEST_CASE("world sizes that differ are refused on all ranks, with both values") {
  const TemporaryDirectory directory;
  auto environments = torchrun(3, directory.path());
  environments[2]["WORLD_SIZE"] = "4";
  environments[2]["LOCAL_WORLD_SIZE"] = "4";
  expect_refused(run_by_hand(environments, {"steps", "5"}), "but WORLD_SIZE=4 on rank 2");
}

TEST_CASE("CPUs of several hosts without Gloo, and a missing MASTER_PORT, are refused") {
  const TemporaryDirectory directory;
  auto environment = torchrun_rank(0, 4, directory.path());
  environment["LOCAL_WORLD_SIZE"] = "2";
  expect_refused(run_by_hand({environment}, {"steps", "5"}), kNoGloo);
  environment = torchrun_rank(0, 2, directory.path());
  environment["MASTER_PORT"] = "";
  expect_refused(run_by_hand({environment}, {"steps", "5"}), "MASTER_PORT is not set");
}

TEST_CASE("a meeting directory that others can enter is not used") {
  const TemporaryDirectory directory;
  const auto environment = torchrun_rank(0, 2, directory.path());
  {
    const Process alone({RANK_PROGRAM, "steps", "5"}, environment);
    while (residue(directory.path()).empty()) usleep(1000);
  }
  const std::string path = directory.path() + "/" + residue(directory.path()).front();
  chmod(path.c_str(), 0755);
  expect_refused(run_by_hand({environment}, {"steps", "5"}), "its mode is 755, not 700");
}

TEST_CASE("something else in rank 0's place is refused") {
  const TemporaryDirectory directory;
  const auto environments = torchrun(2, directory.path());
  {
    const Process alone({RANK_PROGRAM, "steps", "5"}, environments[0]);
    REQUIRE(eventually([&] { return residue(directory.path()).size() == 1; }));
  }
  const std::string path =
      directory.path() + "/" + residue(directory.path()).front() + "/" + kRendezvousSocket;
  unlink(path.c_str());
  const Descriptor listener = listen_at(path);
  Process rank({RANK_PROGRAM, "steps", "5"}, environments[1]);
  const Descriptor client = accept_within(listener, std::chrono::seconds(10));
  JoinReply reply;
  reply.magic[0] = 'x';
  REQUIRE(send_message(client, bytes_of(reply), {}));
  expect_refused({rank.wait()},
                 "the process at the ranks' rendezvous socket is not rank 0 of this job (start of "
                 "the job); hint: find the process that has the socket " +
                     path);
}

TEST_CASE("different programs are refused on all ranks") {
  const TemporaryDirectory directory;
  const TemporaryDirectory programs;
  const std::string copy = programs.path() + "/other";
  // Removes the build id, so that the copy counts as another build.
  const ProcessResult made =
      run_process({"sh", "-c",
                   fmt::format("cp {} {} && objcopy --remove-section .note.gnu.build-id {}",
                               RANK_PROGRAM, copy, copy)});
  REQUIRE(made.code == 0);
  const auto environments = torchrun(2, directory.path());
  Process first({RANK_PROGRAM, "steps", "5"}, environments[0]);
  Process second({copy, "steps", "5"}, environments[1]);
  expect_refused({first.wait(), second.wait()},
                 "ranks do not agree on the program: rank 0 has "
                 "'build ");
}

TEST_CASE("a failure is left where torchrun's agent looks for it") {
  const TemporaryDirectory directory;
  auto environments = torchrun(1, directory.path());
  environments[0]["TORCHELASTIC_ERROR_FILE"] = directory.path() + "/error.json";
  const auto results = run_by_hand(environments, {"no-such-mode"});
  CHECK(results[0].code == 64);
  const std::string json = run_process({"cat", directory.path() + "/error.json"}).out;
  CHECK(json.find(R"({"message": {"message": "fsdp: error[64] rank 0/1 host )") == 0);
}

}  // namespace
}  // namespace fsdp::testing
