// Runs programs on several ranks, as a user does. The programs accept the engine's flags.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "support/run_process.h"
#include "support/sanitizers.h"

namespace fsdp::testing {

using Words = std::vector<std::string>;

// Selects the CPU on every machine, unless `arguments` choose a device.
inline Words with_device(Words arguments) {
  const bool says = std::ranges::any_of(arguments, [](const std::string& word) {
    return word.starts_with("--device") || word == "--help";
  });
  if (!says) arguments.insert(arguments.end(), {"--device", "cpu"});
  return arguments;
}

inline ProcessResult run_ranks_of(const std::string& program, int ranks, const Words& arguments) {
  Words command{FSDP_RUN, "-n", std::to_string(ranks), program};
  const Words words = with_device(arguments);
  command.insert(command.end(), words.begin(), words.end());
  return run_process(command, {}, std::chrono::seconds(kSanitized ? 3000 : 300));
}

}  // namespace fsdp::testing
