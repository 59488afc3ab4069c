// A mesh that reports many ranks and transfers nothing: it shows an engine's own cost on a host,
// and its layout, at any world size, in one process.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>

namespace fsdp::testing {

// Returns the mesh of rank 0 of `world_size`. Gathers and reductions return at once and leave
// memory unchanged, so values are meaningless; on the control communicator every rank agrees with
// this one. `wire_time`: the time that each gather and each reduction occupies its stream.
// `replicas`: ranks of the axis over which shards are replicated; it divides `world_size`.
Mesh simulated_mesh(int world_size, std::chrono::nanoseconds wire_time = {}, int replicas = 1);

}  // namespace fsdp::testing
