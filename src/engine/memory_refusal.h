// What the user hears of a demand for memory beyond Options::memory_limit: where it came up, what
// is held and was planned, and what would help.
#pragma once

#include <memory>

#include "memory/memory_meter.h"
#include "plan/backward_scheduler.h"

namespace fsdp {

// For the meter of a mesh whose engines share `clock`: throws OutOfMemory. A demand of LibTorch's
// names the unit that runs; one of the engine's leaves that to whoever has made it
// (device_error_place.h). Before the first forward the engine's end with InvalidArgument.
MemoryMeter::Refuse refuse_beyond_limit(const std::shared_ptr<BackwardScheduler>& clock);

// What the engines of a mesh will hold by their plans, from their construction on.
// Errors: InvalidArgument if that alone is more than their limit.
void require_within_limit(const BackwardScheduler& clock, int64_t limit);

}  // namespace fsdp
