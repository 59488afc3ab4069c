// Restarts trainings from copies of their state in the launcher's memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "resume/small_training.h"
#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

constexpr int kTrainingSteps = 60;
constexpr int kMemorySteps = 5;

Words in_memory(const ScratchFolder& folder, const Words& more) {
  Words command =
      small_training(folder, kTrainingSteps, {"--save-memory-steps", std::to_string(kMemorySteps)});
  command.insert(command.end(), more.begin(), more.end());
  const Words launcher{"--max-restarts", "9", "--restart-after", "0"};
  command.insert(command.begin() + 1, launcher.begin(), launcher.end());
  return command;
}

// Returns FSDP_MEMORY_DIR of a process.
std::filesystem::path memory_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  for (std::string each; std::getline(file, each, '\0');) {
    if (each.starts_with("FSDP_MEMORY_DIR=")) return each.substr(each.find('=') + 1);
  }
  return {};
}

// Returns the steps that were taken twice after each restart.
std::vector<int> lost_steps(const std::string& out) {
  std::vector<int> lost;
  int last = 0;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("step ")) continue;
    const int step = std::stoi(line.substr(5));
    if (step <= last) lost.push_back(last - step + 1);
    last = step;
  }
  return lost;
}

}  // namespace

TEST_CASE("a killed training resumes from memory, without a checkpoint on disk") {
  const ScratchFolder whole;
  const ProcessResult undisturbed = run_process(small_training(whole, kTrainingSteps, {}));
  REQUIRE(undisturbed.code == 0);
  // The pauses make a killed training longer than this one, most of which is its start.
  const auto start = std::chrono::duration<double>(0.8 * undisturbed.seconds);
  std::mt19937 random(17);
  const int kills = is_long_run() ? 200 : 6;
  int done = 0, resumed = 0;
  while (done < kills) {
    const ScratchFolder folder;
    Process process(in_memory(folder, {"--pause-ms", "10"}));
    std::filesystem::path memory;
    for (int i = 0; i < 6; ++i) {
      std::vector<pid_t> ranks;
      if (!soon([&] { return (ranks = ranks_of(folder)).size() == 2; })) break;
      // All starts of the job have the same memory. A rank that ends has no environment, so the
      // first ranks are asked before any of them is killed.
      if (i == 0) REQUIRE(soon([&] { return !(memory = memory_of(ranks[0])).empty(); }));
      std::this_thread::sleep_for(start + std::chrono::milliseconds(random() % 700));
      ++done;
      const bool all = random() % 2 == 0;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        if (all || rank == random() % 2) ::kill(ranks[rank], SIGKILL);
      }
    }
    const ProcessResult result = process.wait();
    INFO(result.err);
    CHECK(result.code == 0);
    CHECK(read_whole(folder / "weights") == read_whole(whole / "weights"));
    CHECK(result.err.find("cannot be loaded") == std::string::npos);
    for (size_t at = 0; (at = result.err.find("(copy in memory, ", at)) != std::string::npos;
         ++at) {
      ++resumed;
    }
    for (const int lost : lost_steps(result.out)) CHECK(lost <= kMemorySteps);
    CHECK_FALSE(memory.empty());
    CHECK_FALSE(std::filesystem::exists(memory));
  }
  MESSAGE(done << " kills, " << resumed << " resumed from memory");
  CHECK(resumed > 0);
}

TEST_CASE("the memory is freed when the launcher is killed") {
  const ScratchFolder folder;
  Process process(in_memory(folder, {"--pause-ms", "30"}));
  REQUIRE(process.read_until("step 6 "));
  const std::filesystem::path memory = memory_of(ranks_of(folder).front());
  CHECK(std::filesystem::exists(memory / "0"));
  ::kill(process.pid(), SIGKILL);
  process.wait();
  CHECK(soon([&] { return !std::filesystem::exists(memory); }));
}

}  // namespace fsdp::testing
