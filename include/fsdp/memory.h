// What the engine holds, in bytes by category: predicted (MemoryPlan) and measured (MemoryStats).
//
// Both speak of engine buffers of one rank. Activations, unsharded gradients on their way from
// autograd into a reduce slot or lent, and LibTorch's own memory are not engine buffers. Formulas:
// docs/memory.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

enum class MemoryCategory : uint8_t {
  kMainShards,          // fp32 parameters, this rank's slice
  kMainGradients,       // fp32 gradients from the first reduce to zero_grad: this rank's slice, or
                        // whole where every rank has them so (DDP, ZeRO-1)
  kOptimizerState,      // moments, this rank's slice
  kResidentParameters,  // whole parameters in param_dtype where they are not sharded (one rank,
                        // DDP, ZeRO-1, ZeRO-2), without main shards that lie in them
  kParameterSlots,      // gathered parameters of the units in flight
  kReduceSlots,         // whole gradients of the units in flight, and those kept by GradSync(false)
};
inline constexpr int kMemoryCategories = 6;
std::string_view name_of(MemoryCategory category);

struct MemoryBytes {
  std::array<int64_t, kMemoryCategories> bytes{};

  int64_t& operator[](MemoryCategory category) { return bytes[static_cast<size_t>(category)]; }
  int64_t operator[](MemoryCategory category) const { return bytes[static_cast<size_t>(category)]; }
  int64_t total() const;
  bool operator==(const MemoryBytes&) const = default;
};

// Slots of one size that the pools keep for the whole run.
struct PlannedSlots {
  MemoryCategory category;  // kParameterSlots or kReduceSlots
  int64_t slot_bytes = 0;
  int64_t count = 0;
  bool operator==(const PlannedSlots&) const = default;
};

// Computed from integers (layouts and the order of units) before the run; exact for engine buffers
// of the pass that it plays. What passes take beyond that one is learned: `learned_bytes`.
struct MemoryPlan {
  MemoryBytes rest;            // between steps, after zero_grad
  MemoryBytes forward_peak;    // highest point of a forward
  MemoryBytes after_forward;   // between forward and backward
  MemoryBytes backward_peak;   // highest point of a backward
  MemoryBytes after_backward;  // before the optimizer's step
  std::vector<PlannedSlots> slots;
  int64_t held_bytes = 0;  // what the system has given once everything was used
  // Of held_bytes: slots and main gradients that the recorded pass does not explain (forwards
  // beside it, gradients kept by GradSync), known once they were needed, as is the backward's peak
  // then.
  int64_t learned_bytes = 0;
  // On the host, and in none of the above: main shards, main gradients and optimizer state with
  // Options::cpu_offload. At rest, at the highest point of a step, and what the system has given.
  MemoryBytes host_rest;
  MemoryBytes host_peak;
  int64_t host_held_bytes = 0;
  // Beside all of the above while GradSync(engine, false) keeps every unit's whole gradients; those
  // that are lent (docs/memory.md) in LibTorch's memory.
  int64_t kept_gradient_bytes = 0;

  int64_t peak_bytes() const;
  // A table for people: a row a category, a column a phase.
  std::string to_string() const;
};

// Measured on the same buffers.
struct MemoryStats {
  MemoryBytes in_use;  // now
  MemoryBytes peak;    // highest total since construction or reset_peak, by category at that moment
  int64_t held_bytes = 0;
  // On the host, and in none of the above, with Options::cpu_offload.
  MemoryBytes host_in_use;
  MemoryBytes host_peak;
  int64_t host_held_bytes = 0;
  // With Options::memory_limit, else 0: what LibTorch holds of the device, now and at its highest,
  // and the most that it and the mesh's engines held together, each since construction or
  // reset_peak. On a GPU at the places where its allocator is asked (docs/memory.md).
  int64_t torch_in_use = 0;
  int64_t torch_peak = 0;
  int64_t device_peak = 0;
  int64_t system_allocations = 0;  // times that the engine asked the system or driver for memory
  int64_t overflow_slots = 0;      // demands that the planned slots could not serve
};

}  // namespace fsdp
