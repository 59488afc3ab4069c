// The bytes of an engine by category: predicted (MemoryPlan) and measured (MemoryStats).
//
// MemoryPlan and MemoryStats count the engine buffers of one rank. Activations, unsharded gradients
// that the engine has not captured yet, zero-copy gradients and LibTorch's own memory are not
// engine buffers. The formulas are in docs/memory.md.
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
                        // whole gradients if they are replicated (DDP, ZeRO-1). With
                        // Options::optimizer_in_backward: until the unit's update
  kOptimizerState,      // moments, this rank's slice
  kResidentParameters,  // replicated parameters in param_dtype (one rank, DDP, ZeRO-1, ZeRO-2);
                        // main shards inside this memory count as kMainShards
  kParameterSlots,      // gathered parameters of the units in flight
  kReduceSlots,         // whole gradients of units in flight, and those kept by GradSync(false)
  kCheckpointStaging,   // copies of main state that --save-async writes to disk; always on the host
};
inline constexpr int kMemoryCategories = 7;
std::string_view name_of(MemoryCategory category);

struct MemoryBytes {
  std::array<int64_t, kMemoryCategories> bytes{};

  int64_t& operator[](MemoryCategory category) { return bytes[static_cast<size_t>(category)]; }
  int64_t operator[](MemoryCategory category) const { return bytes[static_cast<size_t>(category)]; }
  int64_t total() const;
  bool operator==(const MemoryBytes&) const = default;
};

// Slots of one size. A slot is a buffer for the gathered parameters or the whole gradients of one
// unit, or with Options::optimizer_in_backward for the main gradients of one unit. The engine keeps
// its slots allocated for the whole run.
struct PlannedSlots {
  MemoryCategory category;  // kParameterSlots, kReduceSlots or kMainGradients
  int64_t slot_bytes = 0;
  int64_t count = 0;
  bool operator==(const PlannedSlots&) const = default;
};

// A prediction of the engine's bytes. The engine computes the plan before the run: it simulates one
// forward and backward (a pass) with the sizes and the order of units. The prediction is exact for
// this pass. If a real pass needs more bytes, the engine adds them to the plan as `learned_bytes`.
struct MemoryPlan {
  MemoryBytes rest;            // between steps, after zero_grad
  MemoryBytes forward_peak;    // at the peak of a forward
  MemoryBytes after_forward;   // between forward and backward
  MemoryBytes backward_peak;   // at the peak of a backward
  MemoryBytes after_backward;  // before the optimizer's step
  std::vector<PlannedSlots> slots;
  int64_t held_bytes = 0;  // bytes allocated from the system once every buffer was used
  // The part of held_bytes that the simulated pass does not need, but a real pass has needed: slots
  // and main gradients. Reasons are a second forward before the first backward, and gradients kept
  // by GradSync. After such a pass the peaks above include its bytes, too.
  int64_t learned_bytes = 0;
  // Host bytes beside those of the device: main shards, main gradients and optimizer state under
  // Options::cpu_offload, and checkpoint staging of an engine on a GPU. The fields above do not
  // include these bytes. host_rest: between steps. host_peak: at the peak of a
  // step. host_held_bytes: allocated from the system.
  MemoryBytes host_rest;
  MemoryBytes host_peak;
  int64_t host_held_bytes = 0;
  // Additional bytes while GradSync(engine, false) keeps every unit's whole gradients. The fields
  // above do not include these bytes. Zero-copy gradients (docs/memory.md) are kept in LibTorch's
  // memory and are not counted.
  int64_t kept_gradient_bytes = 0;

  int64_t peak_bytes() const;
  // Returns a table with a row per category and a column per phase.
  std::string to_string() const;
};

// Measured bytes of the engine buffers that MemoryPlan predicts.
struct MemoryStats {
  MemoryBytes in_use;  // now
  MemoryBytes peak;    // at the highest total since construction or reset_peak_memory
  int64_t held_bytes = 0;
  // Host bytes beside those of the device, as in MemoryPlan. The fields above do not include them.
  MemoryBytes host_in_use;
  MemoryBytes host_peak;
  int64_t host_held_bytes = 0;
  // torch_in_use: LibTorch's bytes on the device now. torch_peak: their peak. device_peak: the peak
  // of LibTorch's bytes plus the bytes of all engines of the mesh. A peak is the highest value
  // since construction or reset_peak_memory. All three are 0 without Options::memory_limit. On a
  // GPU, LibTorch's bytes are known only at the times when the engine queries LibTorch's allocator
  // (docs/memory.md).
  int64_t torch_in_use = 0;
  int64_t torch_peak = 0;
  int64_t device_peak = 0;
  int64_t system_allocations = 0;  // allocations from the system or driver
  int64_t overflow_slots = 0;      // slots allocated in addition to the planned ones
};

}  // namespace fsdp
