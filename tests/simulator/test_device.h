// On what the thread ranks of tests compute: the host, or what FSDP_TEST_DEVICE asks for.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

#include "support/run_ranks.h"

namespace fsdp::testing {

using MakeRanks = std::vector<WatchedRank> (*)(int world, const MeshOptions& options);

// FSDP_TEST_DEVICE unset: null, the host. "checked": checked_device.h. "simulated": a simulated GPU
// for each call, with the schedule that FSDP_TEST_SEED draws (a new one each time if it is unset).
// Errors: std::invalid_argument for another word, or one that this build has not.
MakeRanks ranks_of_environment();

// Whether that is a simulated GPU, which has one kind of streams.
bool is_simulated_gpu();

// A simulated GPU takes some hundred times as long as the host for a step. What sweeps over many
// combinations tries one of `of` there, all elsewhere: those whose number is divisible by it.
inline bool is_tried(int combination, int of = 2) {
  return !is_simulated_gpu() || combination % of == 0;
}
// What goes on for long makes `few` rounds there.
inline int rounds(int many, int few) { return is_simulated_gpu() ? few : many; }

// The simulated GPU's, by the folder that the build has.
MakeRanks simulated_ranks_of_environment();

}  // namespace fsdp::testing
