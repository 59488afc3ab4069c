// Starts resume_rank on two ranks, and looks at its processes and checkpoints.
#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/scratch_folder.h"

namespace fsdp::testing {

using Words = std::vector<std::string>;

// Returns the command of a training whose files are in `folder`.
inline Words small_training(const ScratchFolder& folder, int steps, const Words& more) {
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
inline Words checkpoints_in(const ScratchFolder& folder) {
  Words names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints", error)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

// Returns the names of the checkpoints that are being written, without the names in `before`.
inline Words saves_in_progress(const ScratchFolder& folder, const Words& before = {}) {
  Words names = checkpoints_in(folder);
  std::erase_if(names, [&](const std::string& name) {
    // The job makes a folder of step 0 to see whether all ranks see it.
    return !name.starts_with(".step-") || name.starts_with(".step-00000000") ||
           std::ranges::find(before, name) != before.end();
  });
  return names;
}

// Returns the process ids of the ranks of a training in `folder`.
inline std::vector<pid_t> ranks_of(const ScratchFolder& folder) {
  std::vector<pid_t> found;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    // A process may end meanwhile. Its command line is then empty, or the read fails.
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string command(4096, '\0');
    file.read(command.data(), std::ssize(command));
    command.resize(file.gcount());
    if (!command.starts_with(RESUME_RANK)) continue;
    if (command.find(folder.path().string()) != command.npos) found.push_back(std::stoi(name));
  }
  return found;
}

// Waits up to five seconds. Returns true if the condition became true.
template <class Condition>
bool soon(const Condition& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace fsdp::testing
