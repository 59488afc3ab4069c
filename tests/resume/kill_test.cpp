// Kills trainings and sends them signals.
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
#include <vector>

#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using Words = std::vector<std::string>;

Words training(const ScratchFolder& folder, int steps, const Words& more) {
  Words words{FSDP_RUN,     "-n",
              "2",          RESUME_RANK,
              "--device",   "cpu",
              "--steps",    std::to_string(steps),
              "--save-dir", (folder / "checkpoints").string(),
              "--weights",  (folder / "weights").string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Returns the names in the folder of the checkpoints.
std::vector<std::string> checkpoints_in(const ScratchFolder& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints", error)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

// Returns the process ids of the ranks of a training in `folder`.
std::vector<pid_t> ranks_of(const ScratchFolder& folder) {
  std::vector<pid_t> found;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    // A process that has ended meanwhile has an empty command line.
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string command{std::istreambuf_iterator<char>(file), {}};
    if (!command.starts_with(RESUME_RANK)) continue;
    if (command.find(folder.path().string()) != command.npos) found.push_back(std::stoi(name));
  }
  return found;
}

}  // namespace

// A checkpoint is saved after every step, so about half of the kills hit a save.
TEST_CASE("after SIGKILL at any time the next start resumes, and the end is the same to the bit") {
  constexpr int kTrainingSteps = 30;
  const int kills = is_long_run() ? 120 : 12;
  const ScratchFolder whole;
  REQUIRE(run_process(training(whole, kTrainingSteps, {})).code == 0);
  std::mt19937 random(5);
  int done = 0;
  while (done < kills) {
    const ScratchFolder folder;
    const Words command = training(
        folder, kTrainingSteps,
        {"--save-steps", "1", "--save-total-limit", "3", "--resume", "auto", "--pause-ms", "5"});
    bool ended = false;
    for (int attempt = 0; attempt < 4 && !ended; ++attempt, ++done) {
      Process process(command);
      std::this_thread::sleep_for(milliseconds(150 + random() % 500));
      const std::vector<pid_t> ranks = ranks_of(folder);
      const int whom = static_cast<int>(random() % 3);
      if (whom == 0) ::kill(process.pid(), SIGKILL);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (whom == 1 || (whom == 2 && i == random() % 2)) ::kill(ranks[i], SIGKILL);
      }
      const ProcessResult result = process.wait();
      ended = result.code == 0;
      // The launcher's ranks end when it is killed, soon after.
      for (int i = 0; i < 500 && !ranks_of(folder).empty(); ++i) {
        std::this_thread::sleep_for(milliseconds(10));
      }
      REQUIRE(ranks_of(folder).empty());
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
}

TEST_CASE("SIGTERM saves after the step and ends with 0; SIGUSR1 saves, and the training goes on") {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    for (const bool to_a_rank : {false, true}) {
      CAPTURE(signal);
      CAPTURE(to_a_rank);
      const ScratchFolder folder;
      Process process(training(folder, 60, {"--pause-ms", "20"}));
      // The ranks handle signals soon after rank 0 has locked the folder.
      while (!std::filesystem::exists(folder / "checkpoints/.fsdp.lock")) {
        std::this_thread::sleep_for(milliseconds(10));
      }
      std::this_thread::sleep_for(milliseconds(300));
      ::kill(to_a_rank ? ranks_of(folder).back() : process.pid(), signal);
      const ProcessResult result = process.wait();
      INFO(result.out << result.err);
      CHECK(result.code == 0);
      const std::vector<std::string> saved = checkpoints_in(folder);
      REQUIRE(saved.size() == 1);
      // Rank 0 prints a step before it is saved, so after SIGTERM the last one is the newest.
      const size_t last = result.out.rfind("\nstep ");
      REQUIRE(last != std::string::npos);
      const int done = std::stoi(result.out.substr(last + 6));
      const int newest = std::stoi(saved.front().substr(5));
      if (signal == SIGTERM) {
        CHECK(done == newest);
      } else {
        CHECK(done == 60);
        CHECK(newest < 60);
      }
    }
  }
}

}  // namespace fsdp::testing
