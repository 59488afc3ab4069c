// Kills trainings.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "resume/small_training.h"
#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;

enum class Victim : uint8_t { kLauncher, kAllRanks, kOneRank };

void kill_some(Victim victim, pid_t launcher, const std::vector<pid_t>& ranks, size_t which) {
  if (victim == Victim::kLauncher) ::kill(launcher, SIGKILL);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_victim =
        victim == Victim::kAllRanks || (victim == Victim::kOneRank && i == which % ranks.size());
    if (is_victim) ::kill(ranks[i], SIGKILL);
  }
}

}  // namespace

// A checkpoint is saved after every step. Every second kill waits until a save has begun.
TEST_CASE("after SIGKILL at any time the next start resumes, and the end is the same to the bit") {
  constexpr int kTrainingSteps = 30;
  const int kills = is_long_run() ? 120 : 12;
  const ScratchFolder whole;
  REQUIRE(run_process(small_training(whole, kTrainingSteps, {})).code == 0);
  std::mt19937 random(5);
  int done = 0, in_a_save = 0;
  while (done < kills) {
    const ScratchFolder folder;
    const std::string in_background = done % 4 < 2 ? "true" : "false";
    const Words command =
        small_training(folder, kTrainingSteps,
                       {"--save-steps", "1", "--save-total-limit", "3", "--resume", "auto",
                        "--save-async", in_background, "--pause-ms", "5"});
    bool ended = false;
    for (int attempt = 0; attempt < 4 && !ended; ++attempt) {
      const Words before = checkpoints_in(folder);
      const auto is_saving = [&] { return !saves_in_progress(folder, before).empty(); };
      Process process(command);
      std::this_thread::sleep_for(milliseconds(150 + random() % 500));
      // A save of this training takes a few milliseconds, so the ranks are known before it begins.
      const std::vector<pid_t> ranks = ranks_of(folder);
      const auto ended_meanwhile = [&] { return ranks.empty() || ::kill(ranks[0], 0) != 0; };
      if (done % 2 == 0) soon([&] { return is_saving() || ended_meanwhile(); });
      const bool saves = is_saving();
      kill_some(static_cast<Victim>(random() % 3), process.pid(), ranks, random());
      ended = process.wait().code == 0;
      // The launcher's ranks end when it is killed, soon after.
      REQUIRE(soon([&] { return ranks_of(folder).empty(); }));
      done += ended ? 0 : 1;
      in_a_save += !ended && saves ? 1 : 0;
    }
    const ProcessResult last = run_process(command);
    INFO(last.err);
    CHECK(last.code == 0);
    CHECK(last.err.find("passed over") == std::string::npos);
    CHECK(read_whole(folder / "weights") == read_whole(whole / "weights"));
    for (const std::string& name : checkpoints_in(folder)) {
      CAPTURE(name);
      CHECK(name.starts_with("step-"));
    }
  }
  MESSAGE(done << " kills, " << in_a_save << " in a save");
  CHECK(in_a_save >= kills / 4);
}

// The first checkpoint is complete when the second save begins, because a save waits for the last
// one. The second one may be complete when exit() is called.
TEST_CASE("exit() during a save keeps the checkpoint before it, and says what is lost") {
  for (int i = 0; i < (is_long_run() ? 20 : 3); ++i) {
    const ScratchFolder folder;
    const Words flags{"--save-steps", "1", "--save-async", "true", "--resume", "auto"};
    Words first = flags;
    first.insert(first.end(), {"--exit-at", "2"});
    const ProcessResult ended = run_process(small_training(folder, 6, first));
    INFO(ended.err);
    const bool is_lost =
        ended.err.find("the checkpoint of step 2 was not saved") != std::string::npos;
    const ProcessResult resumed = run_process(small_training(folder, 6, flags));
    INFO(resumed.err);
    CHECK(resumed.code == 0);
    CHECK(resumed.err.find(is_lost ? "resumed from step 1 " : "resumed from step 2 ") !=
          std::string::npos);
  }
}

}  // namespace fsdp::testing
