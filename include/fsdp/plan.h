// What a training step takes, before anything of the model exists: the engine's bytes, LibTorch's,
// and what goes over the wire, for any number of ranks.
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
// It is no second model of the engine: the engine itself runs, with the user's code, for one of so
// many ranks, on a device without memory (LibTorch's "meta"), where tensors have shapes and bytes
// and no values.
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

// An optimizer of some parameters.
struct PlannedOptimizer {
  int moments = 2;  // as PlanRequest::optimizer_moments
  // As AdamWOptions::parameters; empty: all.
  std::function<bool(const ShardedParameter&)> parameters{};
};

struct PlanRequest {
  int ranks = 1;
  int ranks_per_host = 0;  // 0: all on one
  // Ranks are arranged as there: shard and replicate, the device (kCuda: its streams run beside
  // each other; nothing of a GPU is needed). The rest is not looked at.
  MeshOptions mesh;
  // Ranks are threads of one GPU. false: of a GPU each, with NCCL between them.
  bool shares_gpu = false;
  // Ranks are processes of one host that read each other's shards where they lie
  // (Options::tuning.map_shards). false: threads, several hosts, GPUs: shards are gathered.
  bool maps_shards = false;
  Options options;  // what a step takes may be more than memory_limit: StepPlan::refused_at
  // fp32 numbers that the optimizer keeps of each parameter: 2 (AdamW), 1 (SGD with momentum), 0.
  int optimizer_moments = 2;
  // Several optimizers, which step one after the other; empty: one of all parameters. All gradients
  // are cleared after them.
  std::vector<PlannedOptimizer> optimizers{};
};

// Bytes of LibTorch's tensors on one rank: activations, gradients on their way, buffers, inputs.
struct TorchMemoryPlan {
  int64_t rest = 0;  // between steps: buffers
  int64_t forward_peak = 0;
  int64_t after_forward = 0;  // what backward needs, and whatever the caller holds
  int64_t backward_peak = 0;
  bool operator==(const TorchMemoryPlan&) const = default;
};

// Of a step in the steady state: the order of units is known, pools are full.
struct StepPlan {
  MemoryPlan memory;  // as Engine::memory_plan() of such a run
  TorchMemoryPlan torch;
  Traffic traffic;  // of one rank
  int ranks = 1;
  Strategy strategy = Strategy::kFullShard;  // the engine's; a unit may have another one
  int64_t parameters = 0;                    // elements of the whole model that the engine shards
  int units = 0;
  // Where a run that goes on all the same passes its Options::memory_limit, as the error says it:
  // "forward of unit 'layers.4'". Empty where peak_bytes() is within the limit, or there is none.
  std::string refused_at;
  // What could not be planned as it is computed, in words: operators that LibTorch has no meta
  // kernel for and that were run instead, on zeros.
  std::vector<std::string> notes;

  // What the device must have: what the engine holds, with LibTorch's highest.
  int64_t peak_bytes() const;
  // "full-shard on 2 ranks, 14 units: 45.3 MiB a rank at rest, 88.1 MiB at peak", with LibTorch's
  // tensors; then what is offloaded, and refused_at; a line more for each note.
  std::string summary() const;
  // A table for people, at most 80 columns.
  std::string to_string() const;
};

// Plans of one model and step for many requests, as a search for ranks and strategies asks. What
// does not depend on these (LibTorch's bytes, the order of units) is found once; a later plan runs
// the engine alone. Equal to fsdp::plan; not thread-safe.
class Planner {
 public:
  // As those of fsdp::plan; called whenever a plan needs them.
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

// Plans for a model that `build` returns, an fsdp::Unit, and a `step(model)`: a forward that
// returns the loss, of which backward is called here. Both are called here, the step several times,
// with LibTorch's factories making tensors without memory wherever no device is named.
// Requires: neither asks a tensor for its values (item(), data_ptr(), accessor); what the host
//   writes itself is made with torch::kCPU. Random numbers are not drawn.
// Errors: InvalidArgument for what an Engine refuses, naming it; for ranks that do not fit the
//   mesh; and, with operator and unit, for what cannot be run without values. What build and step
//   throw themselves passes through.
template <class Build, class Step>
StepPlan plan(const PlanRequest& request, Build&& build, Step&& step) {
  return Planner(std::ref(build), std::ref(step)).plan(request);
}

}  // namespace fsdp
