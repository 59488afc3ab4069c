// Predicts the engine's bytes from integers: the layouts' sizes, and a pass that the policy plays
// (pass.h) with counters in the place of units.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>
#include <vector>

#include "plan/pass.h"

namespace fsdp {

// Sizes of one unit on one rank.
struct UnitSizes {
  int64_t parameter_slot_bytes = 0;  // 0 where parameters are not sharded
  int64_t reduce_slot_bytes = 0;     // 0 without trainable parameters, or captured in place
  int64_t adding_slot_bytes = 0;     // the same where main gradients of an earlier backward are
  int64_t main_shard_bytes = 0;
  std::vector<int64_t> main_gradient_slots;  // bytes, of each trainable segment
  int64_t resident_bytes = 0;
  int64_t kept_gradient_bytes = 0;  // between micro-batches that do not reduce
  bool captures_in_place = false;   // gradients arrive in the main gradient, without a reduce slot
};

struct MemoryInputs {
  std::vector<UnitSizes> units;
  std::vector<UnitRules> rules;  // one a unit
  int kept_units = 0;            // of the pass, as its rules
  int64_t optimizer_state_bytes = 0;
  bool offloads = false;  // main shards, main gradients and optimizer state are on the host
  // Communication on streams of its own: a reduce slot may still be read while the next is written.
  bool streams_overlap = false;
  // Gradients of several backwards are added up before a step.
  bool accumulates = false;
};

// Plays `pass`, as the engine will if the next one is like it, from a begin without gradients; with
// `accumulates` a second time, on what the first has left. Gradients are reduced.
MemoryPlan plan_memory(const MemoryInputs& inputs, const PassRecord& pass);

}  // namespace fsdp
