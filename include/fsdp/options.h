// Options of an engine: strategy, types for compute and reduction, prefetch, memory.
#pragma once

#include <fsdp/callback.h>
#include <fsdp/scalar_type.h>
#include <fsdp/unit_policy.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// Selects which state is sharded over all ranks, which state is sharded over the ranks of a group
// (Axis::kShard), and which state is replicated. For the exact meaning of each value, see the
// placement table (src/plan/placement.cpp). On a mesh with only one group, kHybridShard,
// kHfsdp and kHpz have the same effect as kFullShard.
enum class Strategy : uint8_t {
  kFullShard,  // ZeRO-3, FSDP: parameters, gradients and optimizer state sharded
  kReplicate,  // DDP: everything replicated, gradients averaged
  kZero2,      // optimizer state and gradients sharded; parameters replicated, gathered once a step
  kZero1,      // optimizer state sharded; gradients replicated as in DDP, parameters as in kZero2
  kHybridShard,  // HSDP: all three sharded within a group; gradients averaged over the groups
  kHfsdp,        // parameters and gradients sharded within a group, optimizer state over all ranks
  kHpz,          // ZeRO++ hpZ: all three sharded over all ranks. A second copy of the parameters is
                 // sharded within a group, and each use gathers from this copy
};

// An argument of GradSync. Selects how the gradients of a backward are reduced.
enum class GradientSync : uint8_t {
  kNone,    // no reduction; each rank keeps whole gradients
  kInside,  // reduction over the ranks of a group; equals kAll if no strategy has groups
  kAll,
};

enum class GradientReduction : uint8_t { kMean, kSum };

// Selects the thread in which the CPU runs collectives: the calling thread, or worker threads that
// run concurrently with compute. kAuto is kThreaded if the job's ranks are on several hosts, and
// kInline otherwise.
enum class CpuStreamKind : uint8_t { kAuto, kInline, kThreaded };

// Selects how parameter slots are registered with NCCL (docs/gpu.md).
enum class NcclRegistration : uint8_t {
  kOff,
  kWindows,  // as windows: other GPUs write to the slots without a copy
  kZeroCta,  // as windows, and copy engines gather while kernels compute
};

// Types in which a unit computes and reduces, similar to FSDP2's MixedPrecisionPolicy. Main shards,
// main gradients and optimizer state are always float32, except the moments of AdamW8bit.
//
//   {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32}
struct MixedPrecision {
  // Type of parameters in forward and backward: float32, bfloat16 or float16. If it is unset,
  // parameters keep their constructed type. A module with running statistics (BatchNorm,
  // InstanceNorm with statistics, SyncBatchNorm) also keeps the constructed type if param_dtype is
  // narrower than that type. Such a module is recognised by floating buffers that have the shape of
  // its own parameters.
  std::optional<c10::ScalarType> param_dtype;
  // Type in which ranks send and sum gradients: float32 or bfloat16. The default is float32.
  std::optional<c10::ScalarType> reduce_dtype;
  // Type of the unit's floating outputs. If it is unset, outputs keep the type that forward
  // computes.
  std::optional<c10::ScalarType> output_dtype;
  // true: floating inputs are cast to param_dtype, if param_dtype is set. false: inputs keep their
  // type, and forward casts them itself. Use false if a cast loses needed precision, for example if
  // bfloat16 would round a float32 time step.
  bool cast_forward_inputs = true;
  bool operator==(const MixedPrecision&) const = default;
};

// Options of one unit. A field that is set replaces the engine's option for this unit.
struct UnitOptions {
  // In a BuildScope, this strategy must shard as the engine's strategy does, because the scope
  // shards the unit before the unit has an FQN.
  std::optional<Strategy> strategy;
  std::optional<MixedPrecision> mixed_precision;  // replaces the whole MixedPrecision of the engine
  std::optional<bool> reshard_after_forward;
  std::optional<int> prefetch_units;
  // false: the unit's parameters are not gathered in backward. Set this only if the unit's backward
  // reads no weight (embeddings).
  std::optional<bool> unshard_in_backward;
  // true: backward runs the unit's forward again (fsdp/recompute.h), so activations are not kept.
  std::optional<bool> recompute;
  bool operator==(const UnitOptions&) const = default;
};

// Options of data transport. These options do not change results, and most programs keep the
// defaults.
struct Tuning {
  // true: processes on one host read each other's float32 shards in place through mapped memory, so
  // nothing is gathered and no slot (a buffer for gathered parameters) is used. Parameters that
  // cannot be read in place (thread ranks, a lower param_dtype, units under 256 KiB per rank,
  // cpu_offload) are gathered into slots. false: parameters are always gathered into slots.
  bool map_shards = true;
  // If this is not kOff, the engine has a separate communicator for gathers. Each rank copies its
  // float32 shard into its part of the slot (the buffer for gathered parameters), and the gather
  // then works in place.
  // Requires (unless kOff): one GPU per rank, NCCL 2.31.2 or newer, kFullShard, and only one group
  //   of ranks. If one of these conditions is not met, the engine's constructor throws with the
  //   reason.
  NcclRegistration nccl_registration = NcclRegistration::kOff;
  // The threads in which CPU ranks run collectives. Must be equal for all engines of a mesh,
  // because they share the mesh's streams.
  CpuStreamKind cpu_streams = CpuStreamKind::kAuto;
  bool operator==(const Tuning&) const = default;
};

struct Options {
  // Selects modules that become units in addition to every fsdp::Unit (fsdp/unit_policy.h). If it
  // is set, the root need not be a Unit, and every forward must run inside Engine::forward.
  UnitPolicy units;
  // Applies to each unit that has no mixed_precision of its own. output_dtype applies to the root
  // only.
  MixedPrecision mixed_precision;
  // true: a unit's parameters are freed after its forward and gathered again in backward. The
  // root's own parameters stay gathered until backward ends.
  bool reshard_after_forward = true;
  // The last N units of a forward stay gathered, because backward needs them first. Each of these
  // units saves one gather, and raises the peak memory of forward by its parameters' bytes (also in
  // an evaluation).
  int keep_last_units = 0;
  // Number of units that are gathered ahead of the running unit: 0, 1, 2, …
  int prefetch_units = 1;
  // Activation recomputation (checkpointing). 0: no unit is recomputed. 1: every unit directly
  // inside the root is recomputed. k: every k-th of these units is recomputed, in the order of
  // registration. unit_options can override this for a unit.
  int recompute = 0;
  // true: main shards, main gradients and optimizer state reside in host memory (pinned if there is
  // a GPU), and optimizers step there. Sharded parameters are uploaded ahead of each use.
  // Replicated parameters are uploaded after each change. Engine::sharded_parameters returns host
  // tensors.
  bool cpu_offload = false;
  // Limit of the device bytes that a rank may hold, including LibTorch's tensors (docs/memory.md).
  // 0 means no limit. An allocation beyond the limit throws a DeviceError. The error names the
  // place of the allocation ("forward of unit 'layers.4'"), the memory in use and the remedies.
  // After the error, training can continue with a step that needs less memory. The limit must be
  // equal for all engines of a mesh.
  int64_t memory_limit = 0;
  // false: if the planned bytes of engine and optimizer exceed memory_limit, the constructor of the
  // engine or of the optimizer throws. true: the run continues until an allocation exceeds the
  // limit.
  bool try_beyond_plan = false;
  // true: each unit is updated inside the backward, as soon as its gradients are reduced, and its
  // main gradients are freed. Main gradients then need the bytes of one unit of each size instead
  // of the whole model's. optim.h describes the rules and the calls that throw
  // ([Note: optimizer in backward]).
  bool optimizer_in_backward = false;
  Strategy strategy = Strategy::kFullShard;
  // Ranks divide a parameter only at multiples of this many of its elements: 1 or a power of two up
  // to 1,024. AdamW8bit requires 256 or more (AdamW8bit::kBlockNumel), because a block of its state
  // must not be divided. Each parameter, and each rank's slice, is then padded to a multiple.
  int64_t shard_granule = 1;
  GradientReduction gradient_reduction = GradientReduction::kMean;
  // Divisor of the summed gradients, instead of the world size (kMean only).
  std::optional<float> gradient_divide_factor;
  // Returns the options of the unit with this FQN ("" is the root).
  Callback<UnitOptions(std::string_view fqn)> unit_options;
  // Returns true if the engine must ignore the parameter with this FQN. An ignored parameter is not
  // sharded, not reduced and not optimised.
  Callback<bool(std::string_view fqn)> ignore;
  // true: released slots are filled with NaN, for debugging. If the program reads a slot after its
  // release, the loss then becomes NaN.
  bool debug = false;
  Tuning tuning;
  // Seed of LibTorch's generators in a BuildScope. The seed must be equal on every rank. When the
  // scope ends, the generators are seeded with seed + rank.
  uint64_t seed = 0;
  bool operator==(const Options&) const = default;
};

}  // namespace fsdp
