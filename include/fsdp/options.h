// Options of an engine: strategy, types of compute and reduction, prefetch, memory.
#pragma once

#include <fsdp/callback.h>
#include <fsdp/scalar_type.h>
#include <fsdp/unit_policy.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// Selects what is sharded over all ranks, what over the ranks of a group (Axis::kShard), and what
// is replicated. Each value is a row of the placement table (src/plan/placement.cpp). On a mesh of
// one group the last three are kFullShard.
enum class Strategy : uint8_t {
  kFullShard,  // ZeRO-3, FSDP: parameters, gradients and optimizer state sharded
  kReplicate,  // DDP: everything replicated, gradients averaged
  kZero2,      // optimizer state and gradients sharded; parameters replicated, gathered once a step
  kZero1,      // optimizer state sharded; gradients replicated as in DDP, parameters as in kZero2
  kHybridShard,  // HSDP: all three sharded within a group; gradients averaged over the groups
  kHfsdp,        // parameters and gradients sharded within a group, optimizer state over all ranks
  kHpz,          // ZeRO++ hpZ: all three sharded over all ranks; parameters a second time within a
                 // group, in which each use gathers them
};

// Selects how a backward reduces the gradients that it computes (GradSync).
enum class GradientSync : uint8_t {
  kNone,    // not: each rank keeps whole gradients
  kInside,  // over the ranks of a group; as kAll if no strategy has groups
  kAll,
};

enum class GradientReduction : uint8_t { kMean, kSum };

// Selects where the CPU runs collectives: in the caller's thread, or on worker threads beside
// compute.
enum class CpuStreamKind : uint8_t { kInline, kThreaded };

// Selects how parameter slots are registered with NCCL (docs/gpu.md).
enum class NcclRegistration : uint8_t {
  kOff,
  kWindows,  // as windows, which other GPUs write without a copy
  kZeroCta,  // as windows; copy engines gather while kernels compute
};

// Types in which a unit computes and reduces, as FSDP2's MixedPrecisionPolicy. Main shards, main
// gradients and optimizer state are always float32.
//
//   {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32}
struct MixedPrecision {
  // Type of parameters in forward and backward: float32, bfloat16 or float16. Unset: as
  // constructed. A module that has floating buffers of the shape of its own parameters (BatchNorm,
  // InstanceNorm with statistics, SyncBatchNorm) keeps the constructed type if param_dtype is
  // narrower.
  std::optional<c10::ScalarType> param_dtype;
  // Type in which gradients are sent and summed between ranks: float32 or bfloat16. Unset: float32.
  std::optional<c10::ScalarType> reduce_dtype;
  // Type of the unit's floating outputs. Unset: as computed.
  std::optional<c10::ScalarType> output_dtype;
  // true: floating inputs are cast to param_dtype, if that is set. false: they keep their type, and
  // forward casts them itself; bfloat16 would round, for example, a float32 time step.
  bool cast_forward_inputs = true;
  bool operator==(const MixedPrecision&) const = default;
};

// Options of one unit in place of the engine's; an unset field means the engine's value.
struct UnitOptions {
  std::optional<Strategy> strategy;  // not under a BuildScope, which shards before the FQN is known
  std::optional<MixedPrecision> mixed_precision;  // as a whole
  std::optional<bool> reshard_after_forward;
  std::optional<int> prefetch_units;
  // false: backward of this unit reads no weight (embeddings), so it is not gathered there.
  std::optional<bool> unshard_in_backward;
  // true: backward runs the unit's forward again (fsdp/recompute.h) instead of keeping activations.
  std::optional<bool> recompute;
  bool operator==(const UnitOptions&) const = default;
};

// Options of the transport of bytes. They do not change results; most programs leave them alone.
struct Tuning {
  // true: processes of one host read each other's float32 shards in place, through mapped memory,
  // so nothing is gathered and no slot is used. If that is not possible (threads, a lower
  // param_dtype, units under 256 KiB per rank, cpu_offload), parameters are gathered into slots, as
  // with false.
  bool map_shards = true;
  // Other than kOff: the engine has its own communicator for gathers, and float32 shards are copied
  // into the slot before they are gathered in place.
  // Requires: a GPU per rank, NCCL 2.31.2 or newer, kFullShard, one group of ranks. Anything else
  //   is refused with the reason.
  NcclRegistration nccl_registration = NcclRegistration::kOff;
  // Equal for all engines of a mesh, because they share its streams.
  CpuStreamKind cpu_streams = CpuStreamKind::kInline;
  bool operator==(const Tuning&) const = default;
};

struct Options {
  // Selects modules that become units beside every fsdp::Unit (fsdp/unit_policy.h). If it is set,
  // the root need not be a Unit; forwards then run inside Engine::forward.
  UnitPolicy units;
  // Applies to each unit without its own; output_dtype applies to the root alone.
  MixedPrecision mixed_precision;
  // true: a unit's parameters are freed after its forward and gathered again in backward. The root
  // keeps its own until backward ends.
  bool reshard_after_forward = true;
  // Number of last units of a forward that stay gathered for backward, which needs them first. Each
  // saves a gather and adds its bytes to the peak of forward, also in an evaluation.
  int keep_last_units = 0;
  // Number of units that are gathered ahead of the running one: 0, 1, 2, …
  int prefetch_units = 1;
  // Activation recomputation (checkpointing). 0: none; 1: every unit directly inside the root; k:
  // every k-th of them in the order of registration. unit_options may override it for a unit.
  int recompute = 0;
  // true: main shards, main gradients and optimizer state reside in host memory (pinned if there is
  // a GPU), and optimizers step there. Sharded parameters are uploaded ahead of each use,
  // replicated ones after each change. Engine::sharded_parameters are then host tensors.
  bool cpu_offload = false;
  // Limit of the bytes that a rank holds of its device, LibTorch's tensors included
  // (docs/memory.md); 0: none. An allocation beyond it throws a DeviceError that says where, what
  // is held and what to change; training can go on with less. Equal for all engines of a mesh.
  int64_t memory_limit = 0;
  // false: a limit below the bytes that engine and optimizer hold by their plan is refused when
  // they are made. true: the run goes on until it exceeds the limit.
  bool try_beyond_plan = false;
  Strategy strategy = Strategy::kFullShard;
  GradientReduction gradient_reduction = GradientReduction::kMean;
  // Divides gradients in place of the world size (kMean only).
  std::optional<float> gradient_divide_factor;
  // Returns a unit's own options by its FQN ("" is the root).
  Callback<UnitOptions(std::string_view fqn)> unit_options;
  // Returns true for the FQN of a parameter that the engine leaves alone: not sharded, not reduced,
  // not optimised.
  Callback<bool(std::string_view fqn)> ignore;
  // Debugging aid: fills released slots with NaN, so that a late read shows in the loss.
  bool debug = false;
  Tuning tuning;
  // Seeds LibTorch's generators in a BuildScope, equally on every rank; after it they are seeded
  // with seed + rank.
  uint64_t seed = 0;
  bool operator==(const Options&) const = default;
};

}  // namespace fsdp
