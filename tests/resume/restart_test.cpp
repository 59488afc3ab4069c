// Restarts trainings with fsdp-run --max-restarts.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "resume/small_training.h"
#include "support/control_group.h"
#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

constexpr int kTrainingSteps = 30;

// Returns the command of a training that saves each step and is restarted after failures.
Words restarted_training(const ScratchFolder& folder, const Words& launcher_flags,
                         const Words& flags) {
  Words command = small_training(folder, kTrainingSteps, flags);
  command.insert(command.begin() + 1, launcher_flags.begin(), launcher_flags.end());
  return command;
}

std::string weights_in(const ScratchFolder& folder) {
  std::ifstream file(folder / "weights", std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("ranks that are killed at any time are restarted, and the end is the same to the bit") {
  const ScratchFolder whole;
  REQUIRE(run_process(small_training(whole, kTrainingSteps, {})).code == 0);
  std::mt19937 random(11);
  const int kills = is_long_run() ? 200 : 12;
  int done = 0, in_a_save = 0;
  while (done < kills) {
    const ScratchFolder folder;
    Process process(
        restarted_training(folder, {"--max-restarts", "9", "--restart-after", "0"},
                           {"--save-steps", "1", "--save-total-limit", "3", "--save-async",
                            done % 12 < 6 ? "true" : "false", "--pause-ms", "5"}));
    // All kills of one training have the same launcher. Each new checkpoint allows nine restarts.
    for (int kill_of_run = 0; kill_of_run < 6; ++kill_of_run) {
      std::vector<pid_t> ranks;
      const auto both_run = [&] { return (ranks = ranks_of(folder)).size() == 2; };
      if (!soon(both_run)) break;  // the training has ended
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 900));
      const auto is_saving = [&] { return !saves_in_progress(folder).empty(); };
      const auto have_ended = [&] { return ::kill(ranks[0], 0) != 0; };
      if (done % 2 == 0) soon([&] { return is_saving() || have_ended(); });
      in_a_save += is_saving() ? 1 : 0;
      ++done;
      const bool all = random() % 2 == 0;
      const size_t one = random() % ranks.size();
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (all || i == one) ::kill(ranks[i], SIGKILL);
      }
    }
    const ProcessResult result = process.wait();
    INFO(result.err);
    CHECK(result.code == 0);
    CHECK(weights_in(folder) == weights_in(whole));
    CHECK(result.err.find("cannot be loaded") == std::string::npos);
    for (const std::string& name : checkpoints_in(folder)) CHECK_FALSE(name.starts_with(".step-"));
  }
  MESSAGE(done << " kills, " << in_a_save << " in a save");
}

TEST_CASE("a restarted training resumes, or says that it begins anew") {
  const ScratchFolder folder;
  const Words flags{"--save-steps", "1", "--pause-ms", "20"};
  Process process(
      restarted_training(folder, {"--max-restarts", "1", "--restart-after", "0"}, flags));
  REQUIRE(process.read_until("ready\n"));
  ::kill(ranks_of(folder).front(), SIGKILL);
  const ProcessResult result = process.wait();
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(result.err.find("fsdp: note: restart 1 of 1 in 0 s, with 2 ranks\n") != std::string::npos);
  CHECK(result.err.find("the training begins anew: ") != std::string::npos);
}

TEST_CASE("a signal to the launcher ends the pause before a restart") {
  const ScratchFolder folder;
  Process process({FSDP_RUN, "-n", "1", "--max-restarts", "1", "--restart-after", "100", "sh", "-c",
                   "echo end; exit 3"});
  REQUIRE(process.read_until("end\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(process.pid(), SIGTERM);
  CHECK(process.wait().code == 128 + SIGTERM);
}

// Returns a command that appends a line to `starts` and then runs `script` on each rank.
Words counted(const ScratchFolder& folder, const Words& launcher_flags, const std::string& script) {
  Words words{FSDP_RUN};
  words.insert(words.end(), launcher_flags.begin(), launcher_flags.end());
  const std::string count = "echo start >> " + (folder / "starts").string() + "; ";
  words.insert(words.end(), {"sh", "-c", count + script});
  return words;
}

int64_t starts_in(const ScratchFolder& folder) {
  const std::string text = read_whole(folder / "starts");
  return std::ranges::count(text, '\n');
}

TEST_CASE("an exit code that a restart cannot mend ends the job at its first start") {
  for (const int code : {64, 65, 70, 73, 78}) {
    CAPTURE(code);
    const ScratchFolder folder;
    const ProcessResult result =
        run_process(counted(folder, {"-n", "1", "--max-restarts", "3", "--restart-after", "0"},
                            "exit " + std::to_string(code)));
    INFO(result.err);
    CHECK(result.code == code);
    CHECK(starts_in(folder) == 1);
    CHECK(result.err.find("not restarted") != std::string::npos);
  }
}

TEST_CASE("a rank that always dies is left out, the global batch stays, and all logs are kept") {
  const ScratchFolder folder, alone;
  Words command = restarted_training(folder,
                                     {"--max-restarts", "9", "--min-ranks", "1", "--restart-after",
                                      "0", "--log-dir", (folder / "logs").string()},
                                     {});
  const auto program = std::ranges::find(command, std::string(RESUME_RANK));
  const std::string script = "if [ $RANK = 1 ]; then kill -9 $$; fi; exec \"$0\" \"$@\"";
  command.insert(program, {"sh", "-c", script});
  const ProcessResult result = run_process(command);
  INFO(result.err);
  CHECK(result.code == 0);
  Words one = small_training(alone, kTrainingSteps, {});
  one[2] = "1";  // ranks
  REQUIRE(run_process(one).code == 0);
  CHECK(weights_in(folder) == weights_in(alone));
  for (const char* name : {"rank-1.err", "rank-1.1.err", "rank-1.2.err", "rank-0.3.out"}) {
    CAPTURE(name);
    CHECK(std::filesystem::exists(folder / "logs" / name));
  }
  CHECK(read_whole(folder / "logs" / "ends.jsonl").find("\"attempt\": 2") != std::string::npos);
}

TEST_CASE("a job whose memory is short twice in a row is not restarted again") {
  const std::string bytes = std::to_string(64 << 20);
  const ControlGroup small({"memory.limit_in_bytes", bytes}, {"memory.max", bytes});
  if (!small.works()) {
    MESSAGE("skipped: this process cannot make a control group");
    return;
  }
  const ScratchFolder folder;
  // `tail` keeps the last line of its input, which never ends.
  const ProcessResult result =
      run_process(counted(folder, {"-n", "1", "--max-restarts", "5", "--restart-after", "0"},
                          small.enter() + "exec tail /dev/zero"));
  INFO(result.err);
  CHECK(result.code == 75);
  CHECK(starts_in(folder) == 2);
  CHECK(result.err.find("not restarted") != std::string::npos);
}

}  // namespace fsdp::testing
