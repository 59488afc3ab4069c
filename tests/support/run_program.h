// Runs programs on several ranks as a user would.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "support/run_process.h"

namespace fsdp::testing {

using Words = std::vector<std::string>;

inline ProcessResult run_ranks_of(const std::string& program, int ranks, const Words& arguments) {
  Words command{FSDP_RUN, "-n", std::to_string(ranks), program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, {}, std::chrono::seconds(300));
}

}  // namespace fsdp::testing
