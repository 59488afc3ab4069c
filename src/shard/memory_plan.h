// Predicts the engine's bytes from integers: the layouts' sizes and the order in which slots are
// taken.
#pragma once

#include <fsdp/memory.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

// Sizes of one unit on one rank.
struct UnitSizes {
  int64_t parameter_slot_bytes = 0;  // 0 where parameters are not sharded
  int64_t reduce_slot_bytes = 0;     // 0 without trainable parameters, or captured in place
  int64_t main_shard_bytes = 0;
  int64_t main_gradient_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t kept_gradient_bytes = 0;  // between micro-batches that do not reduce
};

enum class MemoryAction : uint8_t {
  kTakeParameters,
  kGiveParameters,
  kTakeReduce,
  kGiveReduce,
  kTakeMainGradient,
  kEndForward,   // unit ignored
  kEndBackward,  // unit ignored
};

struct MemoryEvent {
  MemoryAction action;
  int unit = 0;
  bool operator==(const MemoryEvent&) const = default;
};

struct MemoryInputs {
  std::vector<UnitSizes> units;
  int64_t optimizer_state_bytes = 0;
  // Communication on streams of its own: a reduce slot may still be read while the next is written.
  bool streams_overlap = false;
};

// Plays one step. Events come from the schedule (engine/schedule.h), which follows the same rules
// as the engine does.
MemoryPlan play_memory(const MemoryInputs& inputs, std::span<const MemoryEvent> events);

}  // namespace fsdp
