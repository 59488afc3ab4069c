// Plans a training step before the model exists: the engine's bytes, LibTorch's bytes and the bytes
// sent, for any number of ranks.
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
// The plan is no second model of the engine: the engine itself runs with the user's code, as one of
// `ranks` ranks, on a device without memory (LibTorch's "meta"), where tensors have shapes and
// sizes but no values.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/memory.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/traffic.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

struct ShardedParameter;  // engine.h

// An optimizer of some of the parameters.
struct PlannedOptimizer {
  int moments = 2;  // as PlanRequest::optimizer_moments
  // As AdamWOptions::parameters; empty: all.
  std::function<bool(const ShardedParameter&)> parameters{};
};

struct PlanRequest {
  int ranks = 1;
  int ranks_per_host = 0;  // 0: all ranks on one host
  // Arrangement of ranks (shard, replicate) and their device; kCuda plans streams that overlap and
  // needs no GPU. Other fields are ignored.
  MeshOptions mesh;
  // true: ranks are threads that share one GPU. false: each has its own, with NCCL.
  bool shares_gpu = false;
  // true: ranks are processes of one host that read each other's shards in place
  // (Options::tuning.map_shards). false (threads, several hosts, GPUs): shards are gathered.
  bool maps_shards = false;
  Options options;  // the plan may exceed memory_limit: StepPlan::refused_at
  // fp32 values that the optimizer keeps per parameter: 2 (AdamW), 1 (SGD with momentum), 0.
  int optimizer_moments = 2;
  // Several optimizers, which step one after the other; all gradients are cleared after the last
  // one. Empty: one optimizer of all parameters.
  std::vector<PlannedOptimizer> optimizers{};
};

// Bytes of LibTorch's tensors on one rank: activations, gradients before capture, buffers, inputs.
struct TorchMemoryPlan {
  int64_t rest = 0;  // between steps: buffers
  int64_t forward_peak = 0;
  int64_t after_forward = 0;  // saved for backward, or held by the caller
  int64_t backward_peak = 0;
  bool operator==(const TorchMemoryPlan&) const = default;
};

// The plan of a step in the steady state: the order of units is known and pools are full.
struct StepPlan {
  MemoryPlan memory;  // Engine::memory_plan() of such a run
  TorchMemoryPlan torch;
  Traffic traffic;  // of one rank
  int ranks = 1;
  Strategy strategy = Strategy::kFullShard;  // the engine's; a unit may have another one
  int64_t parameters = 0;                    // elements of all parameters that the engine shards
  int units = 0;
  // The place where a run that is not refused exceeds its Options::memory_limit, as in the error:
  // "forward of unit 'layers.4'". Empty if peak_bytes() is within the limit or there is none.
  std::string refused_at;
  // Operators without a meta kernel in LibTorch, which ran on zeros instead, in words.
  std::vector<std::string> notes;

  // Returns the bytes that the device must have: the engine's held bytes plus LibTorch's peak.
  int64_t peak_bytes() const;
  // Returns "full-shard on 2 ranks, 14 units: 45.3 MiB a rank at rest, 88.1 MiB at peak", with
  // LibTorch's tensors, then offloaded bytes and refused_at, and one more line per note.
  std::string summary() const;
  // Returns a table of at most 80 columns.
  std::string to_string() const;
};

// A planner of one model and step for many requests, as in a search for ranks and strategies. It
// computes parts that do not depend on the request (LibTorch's bytes, the order of units) once;
// later plans run the engine alone. Plans equal those of fsdp::plan. Not thread-safe.
class Planner {
 public:
  // `build` and `step` are as in fsdp::plan and called when a plan needs them.
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

  // Errors: as fsdp::plan.
  StepPlan plan(const PlanRequest& request);

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

// Plans a step of the model that `build` returns, an fsdp::Unit. `step(model)` runs a forward and
// returns the loss; its backward is called here. Both are called on meta tensors, `step` several
// times: LibTorch's factories make tensors without memory unless a device is named. Random numbers
// are not drawn.
// Requires: neither reads a tensor's values (item(), data_ptr(), accessor); tensors that the host
//   fills are made with torch::kCPU.
// Errors: InvalidArgument for anything that an Engine refuses; for ranks that do not fit the mesh;
//   and, with operator and unit, for operators that need values. Exceptions of build and step pass
//   through.
template <class Build, class Step>
StepPlan plan(const PlanRequest& request, Build&& build, Step&& step) {
  return Planner(std::ref(build), std::ref(step)).plan(request);
}

}  // namespace fsdp
