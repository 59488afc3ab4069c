// A mesh that reports many ranks and transfers nothing. It shows the host time of an engine and its
// layout at any world size, in one process.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>

namespace fsdp::testing {

// Returns the mesh of rank 0 in a world of `world_size` ranks. Gathers and reductions return at
// once and leave memory unchanged, so values are meaningless. On the control communicator, every
// rank agrees with rank 0. `wire_time` is the time for which each gather and each reduction
// occupies its stream. `replicas` is the number of ranks over which shards are replicated. It must
// divide `world_size`.
Mesh simulated_mesh(int world_size, std::chrono::nanoseconds wire_time = {}, int replicas = 1);

}  // namespace fsdp::testing
