// Thread ranks that sum as ranks of several hosts do: first the ranks of each host in order, then
// the hosts in order.
#pragma once

#include <vector>

#include "support/run_ranks.h"

namespace fsdp::testing {

// Makes thread ranks of `hosts` hosts. Each host has the same number of neighbouring ranks.
std::vector<WatchedRank> ranks_with_host_sums(int world, int hosts, const MeshOptions& options);

}  // namespace fsdp::testing
