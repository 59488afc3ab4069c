// All of it: what is known of a machine, what is said about it, and how the program ends.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>

#include "programs/doctor/facts.h"
#include "programs/doctor/gpu_source.h"
#include "programs/doctor/judge.h"

namespace fsdp::doctor {

struct TimeLimits {
  std::chrono::milliseconds asking{60'000};
  std::chrono::milliseconds loopback{30'000};
};

// The facts about GPUs, the loopback among them. Always comes back.
// Requires: `source` and all that it needs live until the threads have ended that the facts name
//   (TaskEnd::ended).
void gather_gpus(Facts& facts, const GpuSource& source, const TimeLimits& limits = {});

// Some thread of it still runs: the process has to end without waiting for it.
bool is_stuck(const Facts& facts);

}  // namespace fsdp::doctor
