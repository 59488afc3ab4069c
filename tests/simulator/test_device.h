// On what the thread ranks of tests compute: the host, or what FSDP_TEST_DEVICE asks for.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

#include "support/long_run.h"
#include "support/run_ranks.h"

namespace fsdp::testing {

using MakeRanks = std::vector<WatchedRank> (*)(int world, const MeshOptions& options);

// FSDP_TEST_DEVICE unset: null, the host. "checked": checked_device.h. "simulated": a simulated GPU
// for each call, with the schedule that FSDP_TEST_SEED draws (a new one each time if it is unset).
// Errors: std::invalid_argument for another word, or one that this build has not.
MakeRanks ranks_of_environment();

// Whether that is a simulated GPU, which has one kind of streams.
bool is_simulated_gpu();

// Returns whether a sweep tries this combination. The longer runs try all. Others try one of `of` on a
// device of tests, which takes up to some hundred times as long for a step, and one of `of_host` on the
// host: those whose number is divisible by it.
inline bool is_tried(int combination, int of = 2, int of_host = 1) {
  return is_long_run() || combination % (ranks_of_environment() == nullptr ? of_host : of) == 0;
}
// Returns how many rounds a loop makes: `few` on a simulated GPU.
inline int rounds(int many, int few) { return is_simulated_gpu() ? few : many; }

// The simulated GPU's, by the folder that the build has.
MakeRanks simulated_ranks_of_environment();

}  // namespace fsdp::testing
