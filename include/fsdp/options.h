// How an engine shards, in which types it computes and reduces, and how far it looks ahead.
#pragma once

#include <fsdp/callback.h>
#include <fsdp/scalar_type.h>
#include <fsdp/unit_policy.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// Rows of the placement table (src/plan/placement.cpp): what is cut over all ranks, what over those
// of a group (Axis::kShard), so that each group has all of it, and what every rank has whole. On a
// mesh of one group the last three are kFullShard.
enum class Strategy : uint8_t {
  kFullShard,    // ZeRO-3, FSDP: parameters, gradients and optimizer state cut
  kReplicate,    // DDP: everything whole, gradients averaged
  kZero2,        // optimizer state and gradients cut; parameters whole, gathered once a step
  kZero1,        // optimizer state cut; gradients whole as in DDP, parameters as in kZero2
  kHybridShard,  // HSDP: all three cut within a group; gradients averaged over the groups
  kHfsdp,        // parameters and gradients cut within a group, optimizer state over all ranks
  kHpz,  // ZeRO++ hpZ: gradients and optimizer state cut over all ranks; parameters, too, and
         // a second time within a group, from where they are gathered for each use
};

// What a backward does with gradients when they have arrived (GradSync).
enum class GradientSync : uint8_t {
  kNone,    // whole gradients are kept on each rank
  kInside,  // they are reduced over the ranks of a group; where no strategy has groups, as kAll
  kAll,
};

enum class GradientReduction : uint8_t { kMean, kSum };

// CPU only: run communication at once in the caller's thread, or on worker threads beside compute.
enum class CpuStreamKind : uint8_t { kInline, kThreaded };

// What NCCL knows beforehand of the memory into which parameters are gathered (docs/gpu.md).
enum class NcclRegistration : uint8_t {
  kOff,
  kWindows,  // slots are registered, so that GPUs write into each other's without a copy
  kZeroCta,  // and copy engines gather, beside kernels that compute
};

// Types in which a unit computes and reduces: FSDP2's MixedPrecisionPolicy. Main shards, main
// gradients and optimizer state are always float32.
//
//   {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32}
struct MixedPrecision {
  // Type of the parameters that forward and backward see: float32, bfloat16 or float16; unset: as
  // constructed. A module that keeps floating buffers of the shape of its own parameters
  // (BatchNorm, InstanceNorm with statistics, SyncBatchNorm) has these parameters as constructed
  // where param_dtype is narrower.
  std::optional<c10::ScalarType> param_dtype;
  // Type in which gradients travel and are summed between ranks: float32 or bfloat16; unset:
  // float32.
  std::optional<c10::ScalarType> reduce_dtype;
  // Type of the unit's floating outputs; unset: as computed.
  std::optional<c10::ScalarType> output_dtype;
  // Cast floating inputs to param_dtype, where it is set. false: they arrive as the caller has
  // them, a time step in float32 say, which bfloat16 would round; forward casts the others itself.
  bool cast_forward_inputs = true;
  bool operator==(const MixedPrecision&) const = default;
};

// What a unit may say differently from the engine; unset = as the engine.
struct UnitOptions {
  std::optional<Strategy> strategy;  // not under a BuildScope, which cuts before it knows the name
  std::optional<MixedPrecision> mixed_precision;  // in place of the engine's, as a whole
  std::optional<bool> reshard_after_forward;
  std::optional<int> prefetch_units;
  // false: backward of this unit reads no weight (embeddings), so it is not gathered there.
  std::optional<bool> unshard_in_backward;
  // Backward runs its forward again (fsdp/recompute.h) instead of keeping its activations.
  std::optional<bool> recompute;
  bool operator==(const UnitOptions&) const = default;
};

// How bytes travel on a device. Results are the same; most programs leave it alone.
struct Tuning {
  // Processes of one host read each other's float32 shards where they lie, mapped side by side:
  // nothing is gathered, no slot is taken. Where that cannot be (threads, lower param_dtype, units
  // under 256 KiB a rank, cpu_offload) or is not wanted (false), parameters are gathered into
  // slots.
  bool map_shards = true;
  // Other than kOff: ranks that have a GPU each, an NCCL of 2.31.2 or newer, kFullShard and ranks
  // in one group; anything else is refused, with the reason. The engine has a communicator of its
  // own for gathers then, and float32 shards are copied into the slot that they are gathered in.
  NcclRegistration nccl_registration = NcclRegistration::kOff;
  // The engines of a mesh share its streams, so all of them have one kind.
  CpuStreamKind cpu_streams = CpuStreamKind::kInline;
  bool operator==(const Tuning&) const = default;
};

struct Options {
  // Which modules are units beside those that are a fsdp::Unit (fsdp/unit_policy.h). With one, the
  // root need not be a Unit; then forwards run inside Engine::forward.
  UnitPolicy units;
  // Holds for every unit that has none of its own; its output_dtype is the root's alone.
  MixedPrecision mixed_precision;
  // true: a unit's parameters are freed between forward and backward and gathered again. The root
  // always keeps its own until backward is done.
  bool reshard_after_forward = true;
  // The last units of forward that stay gathered for backward, which needs them first: each spares
  // a gather, and takes its bytes at the highest point of forward, an evaluation's too.
  int keep_last_units = 0;
  // How many units are gathered ahead of the one that runs: 0, 1, 2, …
  int prefetch_units = 1;
  // Activation recomputation (checkpointing): 1: every unit directly inside the root, k: every k-th
  // of them in the order of registration; 0: none. unit_options may say otherwise for each unit.
  int recompute = 0;
  // Main shards, main gradients and optimizer state lie in the host's memory (pinned, where there
  // is a GPU), and optimizers step there; the device holds what it computes with. Parameters that
  // the strategy cuts come from the host for each use, ahead of it; those that every rank keeps
  // whole come after each change. Engine::sharded_parameters are the host's then.
  bool cpu_offload = false;
  // Bytes that a rank may hold of its device, LibTorch's tensors included (docs/memory.md); 0: no
  // limit. What would pass it ends with a DeviceError that says where, what is held and what to do,
  // and training can go on with less. The engines of a mesh have one limit.
  int64_t memory_limit = 0;
  // A limit that is less than what engine and optimizer hold by their plan is refused when they are
  // made; true: it is tried, and ends where it is passed.
  bool try_beyond_plan = false;
  Strategy strategy = Strategy::kFullShard;
  GradientReduction gradient_reduction = GradientReduction::kMean;
  // Divide gradients by this instead of the world size (kMean only).
  std::optional<float> gradient_divide_factor;
  // Per-unit deviations by FQN ("" is the root).
  Callback<UnitOptions(std::string_view fqn)> unit_options;
  // Parameters by FQN that the engine leaves alone: not sharded, not reduced, not optimised.
  Callback<bool(std::string_view fqn)> ignore;
  // Debugging aid: fills released slots with NaN, so that a read of one is seen in the loss.
  bool debug = false;
  Tuning tuning;
  // BuildScope seeds construction with it on every rank alike, and random numbers afterwards with
  // seed + rank.
  uint64_t seed = 0;
  bool operator==(const Options&) const = default;
};

}  // namespace fsdp
