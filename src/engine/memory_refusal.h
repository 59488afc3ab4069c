// Errors for an allocation beyond Options::memory_limit. The errors name the place of the
// allocation, the memory held, the memory planned, and remedies.
#pragma once

#include <memory>

#include "memory/memory_meter.h"
#include "plan/backward_scheduler.h"

namespace fsdp {

// Returns the function that the memory meter of a mesh calls to refuse an allocation. The engines
// of the mesh share `scheduler`. The function throws OutOfMemory. If LibTorch allocates, the error
// names the unit that runs. If an engine allocates, the engine adds the place to the error later
// (device_error_place.h). Before the first forward, an engine's allocation throws InvalidArgument
// instead.
MemoryMeter::Refuse refuse_beyond_limit(const std::shared_ptr<BackwardScheduler>& scheduler);

// Checks the planned bytes of all engines of a mesh. Called at the end of each engine's
// construction, and when optimizer state is added.
// Errors: InvalidArgument if the planned bytes alone exceed `limit`.
void require_within_limit(const BackwardScheduler& scheduler, int64_t limit);

}  // namespace fsdp
