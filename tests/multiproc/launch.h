// Starts rank_program, under fsdp-run or by hand as torchrun does.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/run_process.h"
#include "support/sanitizers.h"

namespace fsdp::testing {

// Runs fsdp-run with the option that prints the errors of every rank.
inline ProcessResult fsdp_run(int ranks, std::vector<std::string> arguments,
                              const Environment& environment = {},
                              const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{FSDP_RUN, "-n", std::to_string(ranks), "--all-errors"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(RANK_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, environment);
}

// Returns the variables that torchrun sets for one rank of one host.
inline Environment torchrun_rank(int rank, int world, const std::string& directory) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", "29511"},
          {"TORCHELASTIC_RUN_ID", "none"},      {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"XDG_RUNTIME_DIR", directory}};
}

// Starts one process for each environment, all at the same time, and waits for all of them.
inline std::vector<ProcessResult> run_by_hand(const std::vector<Environment>& environments,
                                              const std::vector<std::string>& arguments) {
  std::vector<std::string> command{RANK_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<Process> processes;
  for (const Environment& environment : environments) processes.emplace_back(command, environment);
  return wait_for_all(processes);
}

// Scales the time limits of tests that check "at once". The limits hold if the machine has time for
// all ranks. In a sanitized build they do not.
inline constexpr double kPatience = kSanitized ? 10 : 1;

// Returns the project's files in /dev/shm and in `directory`. None may remain after a job.
inline std::vector<std::string> residue(const std::string& directory = {}) {
  std::vector<std::string> found;
  for (const std::string& place : {std::string("/dev/shm"), directory}) {
    if (place.empty()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      const std::string name = entry.path().filename();
      // Jobs of other tests may run with --max-restarts at the same time.
      const bool is_of_launcher = name.starts_with("fsdp-memory-");
      const bool is_ours = name.find("fsdp") != std::string::npos && !is_of_launcher;
      if (place == directory || is_ours) found.push_back(name);
    }
  }
  return found;
}

// Waits until the condition is true. Returns false if that takes more than ten seconds.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Returns the number of processes that have `token` as an argument.
inline int processes_with(const std::string& token) {
  int count = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    std::ifstream file(entry.path() / "cmdline");
    for (std::string word; std::getline(file, word, '\0');) {
      if (word == token) {
        ++count;
        break;
      }
    }
  }
  return count;
}

inline int lines_with(const std::string& text, const std::string& needle) {
  int count = 0;
  for (size_t at = 0; (at = text.find(needle, at)) != std::string::npos; at += needle.size()) {
    ++count;
  }
  return count;
}

}  // namespace fsdp::testing
