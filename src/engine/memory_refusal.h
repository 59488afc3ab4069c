// Errors for a demand for memory beyond Options::memory_limit: the place of the demand, the memory
// held and planned, and remedies.
#pragma once

#include <memory>

#include "memory/memory_meter.h"
#include "plan/backward_scheduler.h"

namespace fsdp {

// Returns the refusal for the meter of a mesh whose engines share `clock`. It throws OutOfMemory.
// For LibTorch's demand the error names the unit that runs; for the engine's, the caller adds the
// place (device_error_place.h). Before the first forward an engine's demand throws InvalidArgument
// instead.
MemoryMeter::Refuse refuse_beyond_limit(const std::shared_ptr<BackwardScheduler>& clock);

// Checks the bytes that the engines of a mesh will hold by their plans, once all are constructed.
// Errors: InvalidArgument if they alone are more than `limit`.
void require_within_limit(const BackwardScheduler& clock, int64_t limit);

}  // namespace fsdp
