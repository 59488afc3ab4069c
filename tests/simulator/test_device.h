// Chooses the device on which thread ranks of tests compute: the host, or the device that
// FSDP_TEST_DEVICE names.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

#include "support/long_run.h"
#include "support/run_ranks.h"

namespace fsdp::testing {

using MakeRanks = std::vector<WatchedRank> (*)(int world, const MeshOptions& options);

// Returns a function that makes ranks. If FSDP_TEST_DEVICE is unset, returns null, which means the
// host. "checked" selects checked_device.h. "simulated" selects a new simulated GPU for each call.
// FSDP_TEST_SEED selects its schedule; if it is unset, each schedule is new. Errors:
// std::invalid_argument if the value is unknown or this build does not support it.
MakeRanks ranks_of_environment();

// Returns true if the device is a simulated GPU. It has only one kind of streams.
bool is_simulated_gpu();

// Returns false for combinations that a sweep skips. Long runs skip none. On the host, a sweep runs
// the combinations whose number is divisible by `of_host`. On another device, a step takes up to
// some hundred times as long. On such a device a sweep runs the combinations whose number is
// divisible by `of`.
inline bool is_tried(int combination, int of = 2, int of_host = 1) {
  return is_long_run() || combination % (ranks_of_environment() == nullptr ? of_host : of) == 0;
}
// Returns the number of rounds of a long test: `few` on a simulated GPU, and otherwise `many`.
inline int rounds(int many, int few) { return is_simulated_gpu() ? few : many; }

// Makes ranks on the simulated GPU. It is defined in torch/. In a build without CUDA it throws.
MakeRanks simulated_ranks_of_environment();

}  // namespace fsdp::testing
