// The bytes of an engine by category, predicted (MemoryPlan) and measured (MemoryStats).
//
// MemoryPlan and MemoryStats count the engine buffers of one rank. Activations, unsharded gradients
// before they are captured, zero-copy gradients and LibTorch's own memory are not engine buffers.
// The formulas are in docs/memory.md.
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
                        // whole gradients where they are replicated (DDP, ZeRO-1)
  kOptimizerState,      // moments, this rank's slice
  kResidentParameters,  // replicated parameters in param_dtype (one rank, DDP, ZeRO-1, ZeRO-2),
                        // without main shards that are part of them
  kParameterSlots,      // gathered parameters of the units in flight
  kReduceSlots,         // whole gradients of units in flight, and those kept by GradSync(false)
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

// Slots of one size that a pool keeps for the whole run.
struct PlannedSlots {
  MemoryCategory category;  // kParameterSlots or kReduceSlots
  int64_t slot_bytes = 0;
  int64_t count = 0;
  bool operator==(const PlannedSlots&) const = default;
};

// A prediction of bytes, computed before the run from integers (layouts and the order of units). It
// is exact for engine buffers in the pass that it simulates. If a real pass uses more bytes, the
// plan learns them as `learned_bytes`.
struct MemoryPlan {
  MemoryBytes rest;            // between steps, after zero_grad
  MemoryBytes forward_peak;    // at the peak of a forward
  MemoryBytes after_forward;   // between forward and backward
  MemoryBytes backward_peak;   // at the peak of a backward
  MemoryBytes after_backward;  // before the optimizer's step
  std::vector<PlannedSlots> slots;
  int64_t held_bytes = 0;  // bytes allocated from the system after each buffer's first use
  // The learned share of held_bytes: slots and main gradients that a real pass has needed, but the
  // simulated pass does not need. Reasons are a second forward before the first backward, and
  // gradients kept by GradSync. Once learned, such passes are included in the peaks, too.
  int64_t learned_bytes = 0;
  // Host bytes under Options::cpu_offload: main shards, main gradients and optimizer state. The
  // fields above do not include them. host_rest counts between steps, host_peak at the peak of a
  // step, and host_held_bytes is allocated from the system.
  MemoryBytes host_rest;
  MemoryBytes host_peak;
  int64_t host_held_bytes = 0;
  // Additional bytes while GradSync(engine, false) keeps every unit's whole gradients. The fields
  // above do not include them. Zero-copy gradients (docs/memory.md) are kept in LibTorch's memory
  // and are not counted.
  int64_t kept_gradient_bytes = 0;

  int64_t peak_bytes() const;
  // Returns a table with a row per category and a column per phase.
  std::string to_string() const;
};

// Bytes measured on the same engine buffers.
struct MemoryStats {
  MemoryBytes in_use;  // now
  MemoryBytes peak;    // at the highest total since construction or reset_peak_memory
  int64_t held_bytes = 0;
  // Host bytes under Options::cpu_offload. The fields above do not include them.
  MemoryBytes host_in_use;
  MemoryBytes host_peak;
  int64_t host_held_bytes = 0;
  // LibTorch's bytes on the device now, LibTorch's peak, and the peak of the sum of LibTorch's
  // bytes and those of all engines of the mesh. Peaks count since construction or
  // reset_peak_memory. All three are 0 without Options::memory_limit. On a GPU they are sampled
  // when the engine queries LibTorch's allocator (docs/memory.md).
  int64_t torch_in_use = 0;
  int64_t torch_peak = 0;
  int64_t device_peak = 0;
  int64_t system_allocations = 0;  // allocations from the system or driver
  int64_t overflow_slots = 0;      // slots allocated in addition to the planned ones
};

}  // namespace fsdp
