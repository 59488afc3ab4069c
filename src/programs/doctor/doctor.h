// Gathers the facts about GPUs within time limits.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>

#include "programs/doctor/facts.h"
#include "programs/doctor/gpu_source.h"
#include "programs/doctor/judge.h"

namespace fsdp::doctor {

// The time limits of steps that can hang in a driver.
struct TimeLimits {
  std::chrono::milliseconds asking{60'000};
  std::chrono::milliseconds loopback{30'000};
};

// Fills in the facts about GPUs, including the loopback. It always returns.
// Requires: `source` and all objects to which it refers must exist until the threads of these facts
//   have ended (TaskEnd::ended).
void gather_gpus(Facts& facts, const GpuSource& source, const TimeLimits& limits = {});

// Returns true if a thread of these facts still runs. The process must then end without waiting for
// it.
bool is_stuck(const Facts& facts);

}  // namespace fsdp::doctor
