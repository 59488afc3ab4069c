// A mesh that says it has many ranks and moves nothing: what the engine itself costs a host, and
// how it lays itself out, at any world size, in one process.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>

namespace fsdp::testing {

// Rank 0 of `world_size`. Gathers and reductions return at once and leave memory as it is, so that
// values are meaningless; on the control communicator every rank is of this rank's opinion.
// `wire_time`: each gather and each reduction occupies its stream for so long. `replicas`: ranks of
// the axis across which shards are repeated; it divides `world_size`.
Mesh simulated_mesh(int world_size, std::chrono::nanoseconds wire_time = {}, int replicas = 1);

}  // namespace fsdp::testing
