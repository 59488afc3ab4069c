#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "launch.h"

namespace fsdp::testing {
namespace {

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_CASE("ranks get the launcher's variables and cores are shared out") {
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE threads=$OMP_NUM_THREADS";
  const ProcessResult result =
      run_process({FSDP_RUN, "-n", "2", "sh", "-c", script}, {{"OMP_NUM_THREADS", ""}});
  CHECK(result.code == 0);
  CHECK(lines_with(result.out, "0 2 0 2 threads=") == 1);
  CHECK(lines_with(result.out, "1 2 1 2 threads=") == 1);
  CHECK(lines_with(result.out, "threads=\n") == 0);
  const ProcessResult kept = run_process({FSDP_RUN, "--nproc-per-node", "1", "sh", "-c", script},
                                         {{"OMP_NUM_THREADS", "9"}});
  CHECK(kept.out == "0 1 0 1 threads=9\n");
}

TEST_CASE("the program's own options are left to it") {
  const ProcessResult result = run_process({FSDP_RUN, "-n", "1", "echo", "-n", "--log-dir", "x"});
  CHECK(result.out == "--log-dir x");
  CHECK(run_process({FSDP_RUN, "-n", "1", "--", "echo", "-n", "--", "-n"}).out == "-- -n");
}

TEST_CASE("what all survivors say is one line and a count, unless all lines are asked for") {
  const std::vector<std::string> arguments{RANK_PROGRAM, "steps", "100000", "kill", "1", "20"};
  const auto run = [&](std::vector<std::string> command) {
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_process(command).err;
  };
  const std::string once = run({FSDP_RUN, "-n", "5"});
  CAPTURE(once);
  const int shown = lines_with(once, "fsdp: error[75] rank "), counted = lines_with(once, "note: ");
  CHECK(lines_with(once, "rank 1 was killed by signal 9 (SIGKILL)") == shown);
  CHECK(shown >= 2);  // the root cause, and a line for each collective in which a survivor waited
  CHECK(shown <= 3);
  CHECK(counted >= 1);
  CHECK(lines_with(once, "\n") == shown + counted);
  CHECK(lines_with(run({FSDP_RUN, "-n", "5", "--all-errors"}), "fsdp: error[75] rank ") == 5);
}

TEST_CASE("a program that is no rank may run, and its code is the job's") {
  CHECK(run_process({FSDP_RUN, "-n", "3", "true"}).code == 0);
  const ProcessResult result = run_process({FSDP_RUN, "-n", "2", "sh", "-c", "exit 9"});
  CHECK(result.code == 9);
  CHECK(lines_with(result.err, "ended with code 9") == 1);
}

TEST_CASE("a restart is advised only where it helps") {
  const std::string never =
      "see what rank 0 printed; a restart alone is likely to end the same way";
  const std::string then = "see what rank 0 printed, then restart the job";
  const std::vector<std::pair<std::string, std::string>> hints{
      {"exit 64", never},   {"exit 65", never},
      {"exit 70", never},   {"exit 73", never},
      {"exit 78", never},   {"exit 74", "free space or check the path, then restart the job"},
      {"exit 75", then},    {"exit 1", then},
      {"kill -9 $$", then}, {"kill -TERM $$", then},
  };
  for (const auto& [end, hint] : hints) {
    CAPTURE(end);
    const ProcessResult result = run_process({FSDP_RUN, "-n", "1", "sh", "-c", end});
    CAPTURE(result.err);
    CHECK(lines_with(result.err, hint + "\n") == 1);
  }
}

TEST_CASE("the launcher's last line does not repeat the error that it stands below") {
  const TemporaryDirectory logs;
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--all-errors"}, {"--log-dir", logs.path()}}) {
    const ProcessResult result = fsdp_run(2, {"disagree", "1"}, {}, flags);
    CAPTURE(result.err);
    CHECK(result.code == 78);
    const size_t last = result.err.rfind("fsdp: error[78] ");
    REQUIRE(last != std::string::npos);
    CHECK(lines_with(result.err.substr(0, last), "layers 3") >= 1);
    CHECK(lines_with(result.err.substr(last), "layers 3") == 0);
    CHECK(lines_with(result.err.substr(last),
                     "ended with code 78; hint: see the error above; a "
                     "restart alone is likely to end the same way\n") == 1);
  }
  // One rank reports the error that ends all ranks. Another rank may be the first to end.
  const ProcessResult refused = fsdp_run(3, {"no-such-mode"});
  CAPTURE(refused.err);
  CHECK(refused.code == 64);
  CHECK(lines_with(refused.err, "no mode 'no-such-mode'") >= 1);
  CHECK(lines_with(refused.err, "ended with code 64; hint: see the error above") == 1);
}

TEST_CASE("after a fault of the program the hint says where to look, not to restart") {
  for (const std::string signal : {"SEGV", "ABRT", "BUS", "FPE", "ILL"}) {
    CAPTURE(signal);
    const ProcessResult result = run_process(
        {FSDP_RUN, "-n", "1", "sh", "-c", fmt::format("ulimit -c 0; kill -{} $$", signal)});
    CAPTURE(result.err);
    CHECK(result.code == 75);
    CHECK(
        lines_with(result.err, fmt::format("(SIG{}); hint: see what rank 0 printed; the program is "
                                           "at fault: look at its core dump, run it in a debugger",
                                           signal)) == 1);
    CHECK(lines_with(result.err, "then restart") == 0);
  }
}

TEST_CASE("a wrong command line ends with code 64 and one line") {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"-n", "0", "true"},
                                                    {"-n", "2"},
                                                    {"true"},
                                                    {"-n", "x", "true"},
                                                    {"-n", "2", "/no/such/program"}}) {
    std::vector<std::string> command{FSDP_RUN};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ProcessResult result = run_process(command);
    CAPTURE(result.err);
    CHECK(result.code == 64);
    CHECK(result.err.find("fsdp: error[64] rank 0/1 host ") == 0);
    CHECK(lines_with(result.err, "\n") == 1);
  }
  const ProcessResult help = run_process({FSDP_RUN, "--help"});
  CHECK(help.code == 0);
  CHECK(lines_with(help.out, "Exit codes: ") == 1);
  CHECK(lines_with(run_process({FSDP_RUN, "--nproc", "2", "true"}).err,
                   "there is no flag --nproc; hint: did you mean "
                   "--nproc-per-node?") == 1);
  CHECK(lines_with(run_process({FSDP_RUN, "-n", "2", "--log-dirr=x", "true"}).err,
                   "did you mean --log-dir?") == 1);
  const std::vector<std::string> torchruns{FSDP_RUN, "--rdzv-endpoint=a:1", "--max_restarts=3",
                                           "--rdzv_id=x"};
  CHECK(lines_with(run_process(torchruns).err,
                   "there are no flags --rdzv-endpoint, --rdzv_id; hint: --rdzv-endpoint, "
                   "--rdzv_id: use --master-addr and --master-port; use fsdp-run -n N") == 1);
  CHECK(lines_with(run_process({FSDP_RUN, "-n", "2", "--min-ranks", "1", "true"}).err,
                   "--min-ranks and --restart-after need restarts (command line); hint: add "
                   "--max-restarts N") == 1);
  CHECK(
      lines_with(
          run_process({FSDP_RUN, "-n", "2", "--max-restarts", "1", "--min-ranks", "3", "true"}).err,
          "--min-ranks 3 is more than -n 2 (command line); hint: use --min-ranks of at most -n") ==
      1);
}

TEST_CASE("a log folder takes each rank's output, and the guilty rank's line is shown") {
  const TemporaryDirectory directory;
  const std::string logs = directory.path() + "/a/b";
  const ProcessResult good = fsdp_run(2, {"steps", "3"}, {}, {"--log-dir", logs});
  CHECK(good.code == 0);
  CHECK(good.out == "rank 0 of 2 done\n");  // rank 0 prints the job's progress
  CHECK(content(logs + "/rank-1.out") == "rank 1 of 2 done\n");
  const ProcessResult bad =
      fsdp_run(2, {"steps", "100000", "throw", "1", "3"}, {}, {"--log-dir", logs});
  CHECK(bad.code == 65);
  CHECK(lines_with(bad.err, "\n") == 2);
  CHECK(bad.err.find("fsdp: error[65] rank 1/2 host ") == 0);
  CHECK(bad.err.find(content(logs + "/rank-1.err")) != std::string::npos);
  CHECK(content(logs + "/rank-0.err").find("rank 1 gave up") != std::string::npos);
  const std::string ends = content(logs + "/ends.jsonl");
  CHECK(lines_with(ends, "\n") == 2);
  CHECK(lines_with(ends, R"("code": 75, "first": false, "by_launcher": false})") == 1);
  CHECK(lines_with(ends, R"("code": 65, "first": true, "by_launcher": false})") == 1);
}

TEST_CASE("with a log folder what rank 0 writes is shown as it comes") {
  const TemporaryDirectory directory;
  const std::string script = "echo $RANK begins; [ $RANK = 1 ] || { while [ ! -e " +
                             directory.path() + "/seen ]; do sleep 0.05; done; echo ends; }";
  Process process({FSDP_RUN, "-n", "2", "--log-dir", directory.path(), "sh", "-c", script});
  CHECK(process.read_until("0 begins\n"));
  std::ofstream(directory.path() + "/seen") << "yes";
  const ProcessResult result = process.wait();
  CHECK(result.code == 0);
  CHECK(result.out == "ends\n");
  CHECK(content(directory.path() + "/rank-0.out") == "0 begins\nends\n");
}

TEST_CASE("a log folder that cannot be made ends with code 73") {
  const ProcessResult result = fsdp_run(1, {"steps", "1"}, {}, {"--log-dir", "/proc/no/logs"});
  CHECK(result.code == 73);
  CHECK(result.err.find("the log folder cannot be written (/proc/no/logs)") != std::string::npos);
}

TEST_CASE("a signal is forwarded to the ranks and gives 128 + signal") {
  for (const int signal : {SIGTERM, SIGINT}) {
    Process process({FSDP_RUN, "-n", "2", RANK_PROGRAM, "linger", "fsdp-test-linger"});
    REQUIRE(eventually([] { return processes_with("fsdp-test-linger") == 3; }));
    kill(process.pid(), signal);
    const ProcessResult result = process.wait();
    CAPTURE(result.err);
    CHECK(result.code == 128 + signal);
    CHECK(result.err.find(fmt::format("fsdp: error[{}] rank 0/2 host ", 128 + signal)) !=
          std::string::npos);
    CHECK(processes_with("fsdp-test-linger") == 0);
  }
}

TEST_CASE("ranks do not outlive a launcher that is killed") {
  Process process({FSDP_RUN, "-n", "3", RANK_PROGRAM, "linger", "fsdp-test-orphan"});
  REQUIRE(eventually([] { return processes_with("fsdp-test-orphan") == 4; }));
  kill(process.pid(), SIGKILL);
  process.wait();
  CHECK(eventually([] { return processes_with("fsdp-test-orphan") == 0; }));
  CHECK(residue().empty());
}

TEST_CASE("what ranks started goes with them") {
  const ProcessResult result = fsdp_run(2, {"leave-child", "fsdp-test-child"});
  CHECK(result.code == 0);
  CHECK(eventually([] { return processes_with("fsdp-test-child") == 0; }));
}

TEST_CASE("a rank of another number of ranks than the job has is refused") {
  const ProcessResult result =
      run_process({FSDP_RUN, "-n", "2", "sh", "-c",
                   std::string("WORLD_SIZE=3 exec ") + RANK_PROGRAM + " steps 1"});
  CHECK(result.code == 78);
  CHECK(result.err.find("MASTER_ADDR is not set, but the ranks are on several hosts") !=
        std::string::npos);
}

}  // namespace
}  // namespace fsdp::testing
