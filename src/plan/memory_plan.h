// plan_memory predicts the engine's bytes from integers only. Its inputs are the layouts' sizes and
// a pass. plan_memory simulates the pass: the policy (pass.h) acts on counters in place of units.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>
#include <vector>

#include "plan/pass.h"

namespace fsdp {

// Sizes of one unit on one rank.
struct UnitSizes {
  int64_t parameter_slot_bytes = 0;  // 0 if whole parameters need no slot
  int64_t reduce_slot_bytes = 0;     // 0 without trainable parameters, or if captured in place
  int64_t adding_slot_bytes = 0;     // reduce slot if main gradients exist already
  int64_t main_shard_bytes = 0;
  std::vector<int64_t> main_gradient_slots;  // bytes by trainable segment
  int64_t resident_bytes = 0;
  int64_t kept_gradient_bytes = 0;  // whole gradients after a backward that does not reduce
  bool captures_in_place = false;   // gradients arrive in the main gradient, without a reduce slot
};

struct MemoryInputs {
  std::vector<UnitSizes> units;
  std::vector<UnitRules> rules;  // by unit
  int kept_units = 0;            // see Pass
  int64_t optimizer_state_bytes = 0;
  int64_t checkpoint_staging_bytes = 0;
  bool on_gpu = false;    // checkpoint staging is beside the device's memory
  bool offloads = false;  // main shards, main gradients and optimizer state are on the host
  // If true, communication has its own streams. A reduction may then still read one reduce slot
  // while gradients are written to the next slot.
  bool streams_overlap = false;
  // If true, gradients of several backwards are added up before a step.
  bool accumulates = false;
  // If true, backward updates the units (Options::optimizer_in_backward). Main gradients are then
  // slots, like parameters.
  bool updates = false;
};

// Simulates `pass` and returns the engine's bytes by phase. The simulated engine expects this pass,
// so it prefetches as in a repeated pass. The simulation begins without gradients and reduces all
// gradients. With `accumulates` the pass is simulated a second time, with the main gradients that
// the first simulation left.
MemoryPlan plan_memory(const MemoryInputs& inputs, const PassRecord& pass);

}  // namespace fsdp
