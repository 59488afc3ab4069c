// Tests fsdp-run --max-restarts on several hosts: one launcher per host, all on this machine.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <utility>

#include "multiproc/two_launchers.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

const Words kOnce{"--max-restarts", "1", "--restart-after", "0"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Each rank prints its place, and then runs the script of this start of the job.
Words shell(const std::string& first, const std::string& later) {
  return {"sh", "-c",
          "echo start $TORCHELASTIC_RESTART_COUNT: $RANK/$WORLD_SIZE node $GROUP_RANK store "
          "$FSDP_LAUNCHER_STORE\n"
          "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then " +
              first + "; else " + later + "; fi"};
}

// Requires one line of each rank of a host in a start of the job.
void check_start(const std::string& out, int start, int world, const std::vector<int>& ranks) {
  CAPTURE(out);
  for (const int rank : ranks) {
    CHECK(lines_with(out, fmt::format("start {}: {}/{} node {} store 1\n", start, rank, world,
                                      rank / 2)) == 1);
  }
}

TEST_CASE("a rank that is killed restarts the ranks of both hosts") {
  const auto results =
      TwoLaunchers().run(kOnce, shell("[ $RANK = 3 ] && kill -9 $$; sleep 0.5; exit 75", "exit 0"));
  for (const int host : {0, 1}) {
    CAPTURE(results[host].err);
    CHECK(results[host].code == 0);
    for (const int start : {0, 1}) {
      check_start(results[host].out, start, 4, {2 * host, 2 * host + 1});
    }
  }
  CHECK(lines_with(results[0].err, "fsdp: note: restart 1 of 1 in 0 s\n") == 1);
  CHECK(lines_with(results[1].err, "rank 3 was killed by signal 9 (SIGKILL)") == 1);
}

TEST_CASE("ranks of two hosts meet again at the launchers' store after a restart") {
  const TwoLaunchers hosts;
  const std::string rank = TORCH_RANK;
  const std::string logs = hosts.folder() + "/logs";
  const auto results = hosts.run(with(kOnce, {"--log-dir", logs}),
                                 shell("exec " + rank + " sharing-host 1000000 kill 0 5",
                                       "exec " + rank + " sharing-host 20"));
  for (const int host : {0, 1}) {
    CAPTURE(results[host].err);
    CHECK(results[host].code == 0);
    // The store outlives rank 0, so the ranks of both hosts learn how it ended.
    CHECK(lines_with(results[host].err, "rank 0 was killed by signal 9 (SIGKILL)") >= 1);
    CHECK(lines_with(results[host].out, "0.20 1.20 2.20 3.20\n") == 1);
  }
  for (const char* const name : {"rank-0.err", "rank-3.err", "rank-0.1.out", "rank-3.1.out",
                                 "ends-host-0.jsonl", "ends-host-1.jsonl"}) {
    CAPTURE(name);
    CHECK(std::filesystem::exists(logs + "/" + name));
  }
  CHECK(residue().empty());
}

TEST_CASE("a code that a restart cannot mend, on any host, ends the job on both") {
  struct Guilty {
    int rank, code;
  };
  for (const auto& [guilty, code] : {Guilty{0, 70}, {3, 65}, {2, 78}}) {
    CAPTURE(guilty);
    const auto results = TwoLaunchers().run(
        kOnce, shell(fmt::format("[ $RANK = {} ] && exit {}; sleep 0.5; exit 75", guilty, code),
                     "exit 0"));
    for (const int host : {0, 1}) {
      CAPTURE(results[host].err);
      CHECK(results[host].code == code);
      check_start(results[host].out, 0, 4, {2 * host, 2 * host + 1});
      CHECK(lines_with(results[host].out, "start 1") == 0);
    }
    CHECK(lines_with(results[0].err, "fsdp: note: not restarted: after code ") == 1);
  }
}

TEST_CASE("the last restart is the given number, and all launchers end with the job's code") {
  const auto results =
      TwoLaunchers().run(kOnce, shell("exit 3", "[ $RANK = 2 ] && exit 74; sleep 0.5; exit 75"));
  for (const int host : {0, 1}) {
    CAPTURE(results[host].err);
    CHECK(results[host].code == 74);
  }
  CHECK(lines_with(results[0].err, "fsdp: note: 1 restart did not help\n") == 1);
}

TEST_CASE("a host that cannot start its ranks ends the job on both") {
  const TwoLaunchers hosts;
  const std::string sleeps = "sleep 1; exit 75";
  Process first(hosts.command(0, kOnce, shell(sleeps, "exit 0")));
  const ProcessResult second = run_process(hosts.command(1, kOnce, {"/no/such/program"}));
  const ProcessResult result = first.wait();
  CAPTURE(result.err);
  CHECK(second.code == 64);
  CHECK(lines_with(second.err, "'/no/such/program' cannot be started") == 1);
  CHECK(result.code == 64);
  CHECK(lines_with(result.err, "fsdp: note: not restarted: after code 64 ") == 1);
}

// Returns the flags of a job that goes on with one of two hosts. A host that is lost costs the
// five seconds in which it may report.
Words elastic(const std::string& restarts) {
  return {"--max-restarts", restarts, "--restart-after", "1"};
}

TEST_CASE("a host that is lost is left out, and takes part again from the next start on") {
  const TwoLaunchers hosts("1:2");
  const ScratchFolder folder;
  const std::string starts = folder / "starts", go = folder / "go-", told = folder / "told";
  // Host 0 ends start 0 and start 1 when the test says so. Start 2 ends well.
  const Words script{
      "sh", "-c",
      fmt::format("echo $TORCHELASTIC_RESTART_COUNT: $RANK/$WORLD_SIZE >> {}\n"
                  "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0\n"
                  "while ! [ -e {}$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.05; done; exit 75",
                  starts, go)};
  const auto has = [](const std::string& file, const std::string& text, int lines) {
    return eventually([&] { return lines_with(text_in(file), text) == lines; });
  };
  auto launchers = hosts.start(elastic("3"), script);
  REQUIRE(has(starts, "0: ", 4));
  ::kill(launchers[1].pid(), SIGKILL);
  launchers[1].wait();
  std::ofstream(go + "0");
  REQUIRE(has(starts, "1: ", 2));
  Words again{"sh", "-c", "exec \"$0\" \"$@\" 2> " + told};
  Process returned(with(again, hosts.command(1, elastic("3"), script)));
  REQUIRE(has(told, "host 1 waits: it takes part from the next start of the job on\n", 1));
  std::ofstream(go + "1");
  const ProcessResult first = launchers[0].wait();
  CAPTURE(first.err);
  CHECK(first.code == 0);
  CHECK(returned.wait().code == 0);
  CHECK(lines_with(first.err, "fsdp: note: the job starts on host 0, without host 1\n") == 1);
  const std::string all = text_in(starts);
  CAPTURE(all);
  for (const auto& [start, world] : {std::pair(0, 4), {1, 2}, {2, 4}}) {
    for (int rank = 0; rank < 4; ++rank) {
      const std::string line = fmt::format("{}: {}/{}\n", start, rank, world);
      CHECK(lines_with(all, line) == (rank < world ? 1 : 0));
    }
  }
}

TEST_CASE("the other launchers end when that of host 0 ends") {
  const TwoLaunchers hosts("1:2");
  for (const int signal : {SIGKILL, SIGTERM}) {
    CAPTURE(signal);
    auto launchers = hosts.start(elastic("3"), shell("echo runs; sleep 2; exit 75", "exit 0"));
    REQUIRE(launchers[1].read_until("runs\n"));
    ::kill(launchers[0].pid(), signal);
    const ProcessResult first = launchers[0].wait(), second = launchers[1].wait();
    CAPTURE(second.err);
    CHECK(first.code == 128 + signal);
    CHECK(second.code == 75);
  }
}

TEST_CASE("launchers whose flags differ do not start a job") {
  const TwoLaunchers hosts("1:2");
  Process first(hosts.command(0, elastic("3"), {"true"}));
  const ProcessResult second = run_process(hosts.command(1, elastic("4"), {"true"}));
  CAPTURE(second.err);
  CHECK(second.code == 78);
  CHECK(lines_with(second.err, "error[") == 1);  // a note may say that host 0 is not up yet
  CHECK(lines_with(second.err,
                   "fsdp-run on host 1 has -n 2 --nnodes 1:2 --max-restarts 4 --restart-after 1, "
                   "but fsdp-run on host 0 has -n 2 --nnodes 1:2 --max-restarts 3 "
                   "--restart-after 1 (command line); hint: use the same flags on all hosts") == 1);
  CHECK(first.wait().code == 0);
}

}  // namespace
}  // namespace fsdp::testing
