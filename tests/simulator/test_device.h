// Chooses the device on which thread ranks of tests compute: the host, or the one that
// FSDP_TEST_DEVICE names.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

#include "support/long_run.h"
#include "support/run_ranks.h"

namespace fsdp::testing {

using MakeRanks = std::vector<WatchedRank> (*)(int world, const MeshOptions& options);

// Returns a function that makes ranks. FSDP_TEST_DEVICE unset: null, for the host. "checked":
// checked_device.h. "simulated": a simulated GPU for each call, with the schedule of FSDP_TEST_SEED
// (if unset, a new one each time). Errors: std::invalid_argument for another value, or for one that
// this build lacks.
MakeRanks ranks_of_environment();

// Returns true if the device is a simulated GPU, which has only one kind of streams.
bool is_simulated_gpu();

// Returns false for combinations that a sweep skips. The longer runs skip none. On a device of tests,
// which takes up to some hundred times as long for a step, a sweep runs the combinations whose number
// `of` divides, and on the host those whose number `of_host` divides.
inline bool is_tried(int combination, int of = 2, int of_host = 1) {
  return is_long_run() || combination % (ranks_of_environment() == nullptr ? of_host : of) == 0;
}
// Returns the number of rounds of a long test: `few` on a simulated GPU.
inline int rounds(int many, int few) { return is_simulated_gpu() ? few : many; }

// Makes ranks on the simulated GPU; defined in torch/ or, without CUDA, by a function that throws.
MakeRanks simulated_ranks_of_environment();

}  // namespace fsdp::testing
