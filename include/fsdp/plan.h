// Plans a training step before the model exists, for any number of ranks. The plan predicts the
// engine's bytes, LibTorch's bytes, and the bytes that a rank sends.
//
//   const fsdp::PlanRequest request{.ranks = 512, .options = {.recompute = 1}};
//   const fsdp::StepPlan plan = fsdp::plan(
//       request, [] { return fsdp::Unit<gpt::Gpt>(config); },
//       [](fsdp::Unit<gpt::Gpt>& model) {
//         const at::Tensor ids = torch::zeros({4, 1024}, torch::kLong);
//         return at::cross_entropy_loss(model(ids).flatten(0, 1), ids.flatten());
//       });
//   std::cout << plan.to_string();
//
// The plan does not imitate the engine: the real engine runs the user's code, as one of `ranks`
// ranks, on a device without memory (LibTorch's "meta"). Tensors on this device have shapes and
// sizes but no values.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/checkpoint_options.h>
#include <fsdp/memory.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/played_operators.h>
#include <fsdp/rates.h>
#include <fsdp/traffic.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

struct ShardedParameter;  // engine.h

// An optimizer by what it keeps for each element. Other optimizers are planned as the kind that
// keeps the same.
enum class OptimizerKind : uint8_t {
  kSgd,          // nothing
  kSgdMomentum,  // one fp32 value, as Lion
  kLars,         // one fp32 value; also norms of whole parameters, which ranks sum
  kAdamW,        // two fp32 values, as RAdam
  kLamb,         // two fp32 values; also norms, as kLars
  kAdamW8bit,    // two values of 8 bits. Needs Options::shard_granule = AdamW8bit::kBlockNumel.
};

// An optimizer that trains some or all of the parameters.
struct PlannedOptimizer {
  OptimizerKind kind = OptimizerKind::kAdamW;
  // Same meaning as AdamWOptions::parameters. If this function is unset, the optimizer trains all
  // parameters.
  std::function<bool(const ShardedParameter&)> parameters{};
};

struct PlanRequest {
  int ranks = 1;
  int ranks_per_host = 0;  // 0: all ranks on one host
  // Arrangement of the ranks (shard, replicate) and their device. With kCuda, the plan assumes
  // streams that overlap; no GPU is needed. Other fields of MeshOptions are ignored.
  MeshOptions mesh;
  // true: ranks are threads that share one GPU. false: each rank has its own GPU and uses NCCL.
  bool shares_gpu = false;
  // true: ranks are processes, and those of one host read each other's shards in place
  // (Options::tuning.map_shards). false (threads, GPUs): shards are gathered.
  bool maps_shards = false;
  Options options;  // if the plan exceeds memory_limit, see StepPlan::refused_at
  OptimizerKind optimizer = OptimizerKind::kAdamW;  // trains all parameters
  // Replaces `optimizer` if it is not empty: optimizers in the order of their steps. All gradients
  // are cleared after the last of these steps.
  std::vector<PlannedOptimizer> optimizers{};
  bool ema = false;  // true: an fsdp::Ema averages the weights
  // Set: the plan includes the size of a checkpoint, and the memory for copies of the state
  // (CheckpointOptions::state_copies). Of these options, only those about both are read.
  std::optional<CheckpointOptions> checkpoints{};
  // Set: the plan includes the time of the step.
  std::optional<Rates> rates{};
  // With rates: the file of a trace of two steps in virtual time, for Perfetto. The second is the
  // planned step. Empty: none. Such a plan always runs LibTorch's operators.
  std::filesystem::path trace_file{};
};

// Bytes of LibTorch's tensors on one rank: activations, gradients that the engine has not captured
// yet, buffers, inputs.
struct TorchMemoryPlan {
  int64_t rest = 0;  // between steps; buffers only
  int64_t forward_peak = 0;
  int64_t after_forward = 0;  // tensors saved for backward or held by the caller
  int64_t backward_peak = 0;
  bool operator==(const TorchMemoryPlan&) const = default;
};

// The gathers or the reductions of a step.
struct CollectiveUse {
  int64_t count = 0;
  int64_t ring_steps = 0;  // of the collective with the most steps
  // Transfer time of all of them, each alone, by the link that limits the bandwidth.
  int64_t host_ns = 0, net_ns = 0;
  // Parts of the time in which compute waits for them: the latency of collectives, and the engine's
  // kernels on their stream. The rest is transfer.
  int64_t exposed_latency_ns = 0, exposed_kernels_ns = 0;

  bool net_limits() const { return net_ns > host_ns; }
  bool operator==(const CollectiveUse&) const = default;
};

// The time of a step, from the end of the previous step to the end of this one, in nanoseconds. The
// engine's own schedule runs in virtual time, with all its waits, prefetch, offload and
// recomputation. The parts add up to the total, except for rounding. `docs/rehearsal.md` lists
// effects that are not included.
struct StepTime {
  int64_t total_ns = 0;
  // Work of the compute stream, slowed by collectives that run at the same time.
  int64_t products_ns = 0;   // matrix products and convolutions
  int64_t attention_ns = 0;  // scaled_dot_product_attention
  int64_t operators_ns = 0;  // all other operators of LibTorch
  int64_t kernels_ns = 0;    // the engine's kernels: casts, accumulation, copies
  int64_t optimizer_ns = 0;  // updates, norms and clipping
  // Time in which compute waits for a gather, for a reduction or for a copy between device and host
  // (on an inline CPU stream: all of their time).
  int64_t exposed_gather_ns = 0;
  int64_t exposed_reduce_ns = 0;
  int64_t exposed_transfer_ns = 0;
  int64_t host_ns = 0;  // time in which compute has no work, because the rank's thread issued none
  // Time in which gathers and reductions ran, exposed or not.
  int64_t gather_ns = 0;
  int64_t reduce_ns = 0;
  CollectiveUse gathers{}, reductions{};
  double flops = 0;   // operations of products and attention, including recomputation
  std::string basis;  // the origin of the rates, and the operators that they priced

  // Returns the time of LibTorch's operators and the engine's kernels.
  int64_t compute_ns() const { return products_ns + attention_ns + operators_ns + kernels_ns; }
};

// The plan of a step after the first steps of a run. The engine then knows the order of units, and
// has allocated all its buffers.
struct StepPlan {
  MemoryPlan memory;  // Engine::memory_plan() of such a run
  TorchMemoryPlan torch;
  Traffic traffic;  // of one rank
  int ranks = 1;
  Strategy strategy = Strategy::kFullShard;  // the engine's strategy; a unit may have another one
  int64_t parameters = 0;                    // elements of all parameters that the engine shards
  int units = 0;
  // The place at which the run will exceed Options::memory_limit, as the error names it: "forward
  // of unit 'layers.4'". Some runs are refused earlier, by a constructor
  // (Options::try_beyond_plan). This string is empty if peak_bytes() is within the limit, or if
  // there is no limit.
  std::string refused_at;
  // Messages that name operators for which LibTorch has no meta kernel. The planner ran these
  // operators on zeros instead.
  std::vector<std::string> notes;
  // The size of a checkpoint of the engine, its optimizers and the random states, for rank 0.
  // Unset if PlanRequest::checkpoints is. Buffers are assumed to be equal on all ranks; if one is
  // not, a checkpoint has it once per rank.
  std::optional<CheckpointSize> checkpoint{};
  std::optional<StepTime> time{};  // unset if PlanRequest::rates is

  // Returns the device bytes that the step needs: the engine's held bytes plus LibTorch's peak.
  int64_t peak_bytes() const;
  // Returns "full-shard on 2 ranks, 14 units: 45.3 MiB a rank at rest, 88.1 MiB at peak", followed
  // by the bytes of LibTorch's tensors, the offloaded bytes and refused_at. Each note adds a line.
  std::string summary() const;
  // Returns a table of at most 80 columns.
  std::string to_string() const;
};

// A planner for many requests with the same model and step, for example in a search over ranks and
// strategies. The first plan computes everything that does not depend on the request (LibTorch's
// bytes, the order of units). Later plans run only the engine. The plans equal those of fsdp::plan.
// Not thread-safe.
class Planner {
 public:
  // Stores `build` and `step`, which are the same as in fsdp::plan. Every plan() calls `build`. It
  // calls `step` only if it cannot use the results of an earlier plan, or if the plan exceeds the
  // memory limit.
  template <class Build, class Step>
  Planner(Build build, Step step)
      : Planner(std::function<Model()>([build = std::move(build), step = std::move(step)] {
          auto model = build();
          auto root = model.ptr();
          return Model{std::move(root),
                       [model = std::move(model), &step]() mutable { return step(model); }};
        })) {}
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Errors: the same as those of fsdp::plan.
  StepPlan plan(const PlanRequest& request);
  // Returns the distinct operators of a step, to measure their times. Ignores PlanRequest::rates.
  // Errors: the same as those of fsdp::plan.
  PlayedOperators operators(PlanRequest request);

 private:
  friend class PlannedRun;
  struct Model {
    std::shared_ptr<torch::nn::Module> root;
    std::function<at::Tensor()> step;
  };
  explicit Planner(std::function<Model()> build);

  struct State;
  const std::unique_ptr<State> state_;
};

// Plans a step of the model (an fsdp::Unit) that `build` returns. `step(model)` must run a forward
// and return the loss; this function calls the loss's backward. Both functions run on meta tensors,
// and `step` is called several times. While they run, LibTorch's factory functions make meta
// tensors, unless the call names a device. No random numbers are drawn.
// Requires: neither function reads a tensor's values (item(), data_ptr(), accessor). Tensors that
//   the host fills must be made with torch::kCPU.
// Errors: InvalidArgument for everything that an Engine refuses, and if shard · replicate is not
//   `ranks`. InvalidArgument if the rates lack a rate that the step uses. InvalidArgument that
//   names the operator and the unit if an operator needs values. Exceptions that build or
//   step throws are rethrown.
template <class Build, class Step>
StepPlan plan(const PlanRequest& request, Build&& build, Step&& step) {
  return Planner(std::ref(build), std::ref(step)).plan(request);
}

}  // namespace fsdp
