// Tests fsdp-run on several hosts: one launcher per host, all on this machine.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "launch.h"
#include "multiproc/two_launchers.h"

namespace fsdp::testing {
namespace {

TEST_CASE(
    "the launchers of two hosts give their ranks the job's numbers, "
    "address and token") {
  const TwoLaunchers hosts;
  const std::string script =
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE node $GROUP_RANK "
      "$FSDP_NODE "
      "at $MASTER_ADDR restart $TORCHELASTIC_RESTART_COUNT${FSDP_NO_TOKEN+ no "
      "token} "
      "store ${TORCHELASTIC_USE_AGENT_STORE-own}; cmp $FSDP_JOB_TOKEN_FILE " +
      hosts.token();
  // The launchers replace variables that they inherit.
  const auto results = hosts.run(
      {}, {"sh", "-c", script}, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"FSDP_NO_TOKEN", "1"}});
  for (const int host : {0, 1}) {
    CAPTURE(results[host].err);
    CHECK(results[host].code == 0);
    for (const int local : {0, 1}) {
      CHECK(lines_with(results[host].out,
                       fmt::format("{}/4 {}/2 node {} {} at 127.0.0.1 restart 0 store own\n",
                                   2 * host + local, local, host, host)) == 1);
    }
  }
}

TEST_CASE("ranks that two launchers start share memory inside their hosts") {
  for (const ProcessResult& result : TwoLaunchers().run({}, {TORCH_RANK, "sharing-host", "20"})) {
    CHECK(result.err == "");
    CHECK(result.out == "0.20 1.20 2.20 3.20\n0.20 1.20 2.20 3.20\n");
    CHECK(result.code == 0);
  }
  CHECK(residue().empty());
}

TEST_CASE("how a rank was killed is known to the ranks and launchers of both hosts") {
  const auto results = TwoLaunchers().run(
      {"--all-errors"}, {TORCH_RANK, "sharing-host", "1000000", "kill", "3", "5"});
  for (const int host : {0, 1}) {
    CAPTURE(host);
    CAPTURE(results[host].err);
    CHECK(results[host].code == 75);
    const int survivors = host == 0 ? 2 : 1;
    CHECK(lines_with(results[host].err, "rank 3 was killed by signal 9 (SIGKILL)") ==
          survivors + 1);
    CHECK(lines_with(results[host].err, "\n") == survivors + 1);
  }
  // The launcher of host 1 speaks for rank 3, that of host 0 for one of its own
  // ranks.
  CHECK(lines_with(results[1].err, "fsdp: error[75] rank 3/4 host ") == 1);
  CHECK(lines_with(results[0].err, "fsdp: error[75] rank 3/4 host ") == 0);
}

TEST_CASE(
    "a rank that ends with a code of its own gives it to the launcher of "
    "its host only") {
  const auto results =
      TwoLaunchers().run({}, {TORCH_RANK, "sharing-host", "1000000", "throw", "2", "5"});
  CHECK(results[0].code == 75);
  CHECK(results[1].code == 74);
  for (const ProcessResult& result : results) {
    CAPTURE(result.err);
    CHECK(lines_with(result.err, "the disk is full") >= 1);
    CHECK(lines_with(result.err, "rank 2") >= 1);
  }
}

TEST_CASE("hosts may share a log folder: its files have the job's numbers") {
  const TwoLaunchers hosts;
  const std::string logs = hosts.folder() + "/logs";
  const auto results = hosts.run({"--log-dir", logs}, {"sh", "-c", "echo I am $RANK; exit $RANK"});
  CHECK(results[0].out == "I am 0\n");  // each launcher shows the first rank of its host
  CHECK(results[1].out == "I am 2\n");
  CHECK(results[0].code == 1);
  CHECK((results[1].code == 2 || results[1].code == 3));
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(text_in(fmt::format("{}/rank-{}.out", logs, rank)) == fmt::format("I am {}\n", rank));
    const std::string ends = text_in(fmt::format("{}/ends-host-{}.jsonl", logs, rank / 2));
    CHECK(lines_with(ends, "\n") == 2);
    CHECK(lines_with(ends, fmt::format(R"("rank": {}, )", rank)) == 1);
    CHECK(lines_with(ends, fmt::format(R"("code": {}, )", rank)) == 1);
  }
}

TEST_CASE("a signal to one launcher ends the ranks of both hosts") {
  const TwoLaunchers hosts;
  const std::string begun = hosts.folder() + "/begun";
  auto launchers = hosts.start({}, {TORCH_RANK, "sharing-host", "1000000"},
                               {{"TEST_BEGUN", begun}, {"TEST_TIMEOUT_MS", "6000"}});
  for (int rank = 0; rank < 4; ++rank) {
    const auto has_begun = [&] {
      return std::filesystem::exists(fmt::format("{}-{}", begun, rank));
    };
    REQUIRE((eventually(has_begun) || eventually(has_begun)));
  }
  ::kill(launchers[1].pid(), SIGTERM);
  const ProcessResult other = launchers[0].wait(), stopped = launchers[1].wait();
  CAPTURE(other.err);
  CAPTURE(stopped.err);
  CHECK(stopped.code == 143);
  CHECK(lines_with(stopped.err, "fsdp: error[143] rank 2/4 host ") == 1);
  // No rank of host 1 is left that could report the end.
  CHECK(other.code == 75);
  CHECK(lines_with(other.err, " did not ") >= 1);
}

TEST_CASE("flags for hosts that do not fit are refused in one line") {
  const TwoLaunchers hosts;
  struct Refused {
    Words words;
    std::string line;
  };
  const std::string place = " (command line); hint: ";
  for (const auto& [words, line] : {
           Refused{{"--node-rank", "0"}, "--node-rank needs --nnodes" + place + "add --nnodes H"},
           {{"--no-token"}, "--token-file or --no-token needs --nnodes" + place + "add --nnodes H"},
           {{"--nnodes", "2"},
            "--nnodes 2 needs --node-rank, --master-addr, --master-port, "
            "--token-file or "
            "--no-token" +
                place + "see fsdp-run --help"},
           {{"--nnodes", "1", "--node-rank", "0"},
            "--nnodes 1 needs --master-addr, --master-port, --token-file or "
            "--no-token" +
                place},
           {{"--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "--master-port", "1",
             "--no-token"},
            "--node-rank 2, expected less than --nnodes 2" + place + "number the hosts from 0"},
           {{"--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master-port", "1",
             "--no-token", "--token-file", "t"},
            "--token-file and --no-token are both set" + place + "use one of them"},
           {{"--nnodes", "65536", "--node-rank", "1", "--master-addr", "a", "--master-port", "1",
             "--no-token"},
            "--nnodes 65536 with -n 2 makes more than 65536 ranks" + place},
           {{"--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master-port", "1",
             "--no-token", "--max-restarts", "1", "--min-ranks", "1"},
            "--min-ranks needs one host" + place + "use --nnodes MIN:MAX"},
           {{"--nnodes", "1:2", "--node-rank", "1", "--master-addr", "a", "--master-port", "1",
             "--no-token"},
            "--nnodes 1:2 needs restarts" + place + "add --max-restarts N"},
           {{"--nnodes", "1:2", "--max-restarts", "1"},
            "--nnodes 1:2 needs --node-rank, --master-addr, --master-port, "},
           {{"--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--master-port", "1",
             "--no-token", "--restart-after", "1"},
            "--min-ranks and --restart-after need restarts" + place + "add --max-restarts N"},
           {{"--nnodes", "2:1"}, "--nnodes 2:1 is no number of hosts" + place},
           {{"--nnodes", "0:1"}, "--nnodes 0:1 is no number of hosts" + place},
           {{"--nnodes", "0"}, "--nnodes 0 is no number of hosts" + place},
           {{"--nnodes", "two"}, "--nnodes two is no number of hosts" + place},
           {{"--master-port", "0"}, "--master-port"},
       }) {
    Words command{FSDP_RUN, "-n", "2"};
    command.insert(command.end(), words.begin(), words.end());
    command.push_back("true");
    const ProcessResult result = run_process(command);
    CAPTURE(result.err);
    CHECK(result.code == 64);
    CHECK(lines_with(result.err, "\n") == 1);
    CHECK(lines_with(result.err, line) == 1);
  }
  CHECK(run_process({FSDP_RUN, "--nnodes", "1", "-n", "2", "true"}).code == 0);
}

TEST_CASE(
    "a token file that others can read, or that is too short, is refused "
    "before a start") {
  const TwoLaunchers hosts;
  const auto refused = [&](const std::string& why) {
    Words command{FSDP_RUN};
    for (const Words& words : {hosts.flags(0), Words{"sh", "-c", "echo started"}}) {
      command.insert(command.end(), words.begin(), words.end());
    }
    const ProcessResult result = run_process(command);
    CAPTURE(result.err);
    CHECK(result.code == 78);
    CHECK(result.out == "");
    CHECK(lines_with(result.err, "\n") == 1);
    CHECK(lines_with(result.err, "token file " + hosts.token() + " cannot be used") == 1);
    CHECK(lines_with(result.err, why) == 1);
    CHECK(lines_with(result.err, "head -c 32 /dev/urandom > ") == 1);
    CHECK(lines_with(result.err, "chmod 600 ") == 1);
  };
  chmod(hosts.token().c_str(), 0644);
  refused("its mode is 644");
  chmod(hosts.token().c_str(), 0600);
  std::ofstream(hosts.token()) << std::string(31, 'x');
  refused("it has 31 bytes");
  std::filesystem::remove(hosts.token());
  refused("No such file or directory");
}

}  // namespace
}  // namespace fsdp::testing
