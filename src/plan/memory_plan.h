// plan_memory predicts the engine's bytes from integers: the layouts' sizes, and a pass that the
// policy (pass.h) plays with counters in place of units.
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
  int64_t adding_slot_bytes = 0;     // the same, once an earlier backward left main gradients
  int64_t main_shard_bytes = 0;
  std::vector<int64_t> main_gradient_slots;  // bytes by trainable segment
  int64_t resident_bytes = 0;
  int64_t kept_gradient_bytes = 0;  // between micro-batches that do not reduce
  bool captures_in_place = false;   // gradients arrive in the main gradient, without a reduce slot
};

struct MemoryInputs {
  std::vector<UnitSizes> units;
  std::vector<UnitRules> rules;  // by unit
  int kept_units = 0;            // see Pass
  int64_t optimizer_state_bytes = 0;
  bool offloads = false;  // main shards, main gradients and optimizer state are on the host
  // Communication has streams of its own: a reduction may still read one reduce slot while the next
  // one is written.
  bool streams_overlap = false;
  // Gradients of several backwards are added up before a step.
  bool accumulates = false;
};

// Plays `pass`, which the next pass is expected to equal, and returns its bytes by phase. It begins
// without gradients and reduces all of them. With `accumulates` the pass is played a second time,
// on the main gradients that the first left.
MemoryPlan plan_memory(const MemoryInputs& inputs, const PassRecord& pass);

}  // namespace fsdp
