// The engine: shards a model made of units, and keeps every rank's forward and backward supplied.
//
//   fsdp::Mesh mesh = fsdp::Mesh::from_env();
//   fsdp::Unit<Net> model(…);                       // units inside, the root a unit too
//   fsdp::Engine engine(model, mesh, {.prefetch_units = 1});
//   fsdp::AdamW optimizer(engine, {.lr = 3e-4});
//   loss = …model(x)…; loss.backward(); optimizer.clip_grad_norm(1.0); optimizer.step();
//   optimizer.zero_grad();
//
// After construction every parameter of the model is sharded: reading one outside its unit's
// forward or backward throws. Every rank must run the same units in the same order; what differs
// between ranks is an error that names both sides, never a wrong number (docs/errors.md).
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/memory.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/traffic.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

struct BuildState;
class EngineParts;

// Builds a model unit by unit: between construction and the engine that takes it, each Unit is
// sharded as soon as it is constructed, so that a rank never holds more than its shards and one
// unit. Initial values are those of a plain construction with torch::manual_seed(options.seed), for
// any world size. Parameters must be initialised in the constructor of the unit that owns them (a
// parent that initialises its units' parameters throws). Ignored parameters need a plain build.
// Thread ranks build one after another: the scope holds a process-wide lock until the engine takes
// it, and their collectives inside throw a StateError. On a GPU tensors are made there at once
// where nobody names a device, as by Python's torch.set_default_device: the GPU's generator draws,
// so the same seed gives other values than on the CPU, and what the host writes itself (data_ptr,
// accessor) has to be made with torch::kCPU.
class BuildScope {
 public:
  explicit BuildScope(Mesh mesh, Options options = {});
  ~BuildScope();
  BuildScope(const BuildScope&) = delete;
  BuildScope& operator=(const BuildScope&) = delete;

  // Shards a module that Options::units will choose, as soon as it is built, where its model is put
  // together from such parts: `layers->push_back(building.shard(Block(64)))`. Returns it.
  template <class Module>
  Module shard(Module module) {
    shard_now({&*module});
    return module;
  }
  // The same of the layers of one unit (each_child_of with a number), all of which are there for
  // that: `for (auto& layer : building.shard(std::vector{Block(64), Block(64)})) …`.
  template <class Module>
  std::vector<Module> shard(std::vector<Module> layers) {
    std::vector<torch::nn::Module*> modules;
    for (Module& each : layers) modules.push_back(&*each);
    shard_now(modules);
    return layers;
  }

  const Mesh& mesh() const;
  const Options& options() const;

 private:
  friend class Engine;
  void shard_now(const std::vector<torch::nn::Module*>& layers);
  std::unique_ptr<BuildState> state_;
};

// This rank's run of one parameter: elements [begin, begin + local.numel()) of the parameter laid
// out in its memory order (row-major for contiguous parameters). `local` may be empty on this rank.
struct ShardedParameter {
  std::string fqn;
  std::vector<int64_t> shape;  // of the whole parameter
  bool trainable = true;
  int64_t begin = 0;
  at::Tensor local;  // 1-d float32 view of the main shard; `.grad` is a view of the main gradient
};

struct EngineStats {
  MemoryStats memory;
  int64_t all_gathers = 0;
  int64_t reduces = 0;          // reduce_scatter or all_reduce of gradients
  int64_t passes = 0;           // backwards that reduced
  Traffic sent;                 // by this rank; mapped shards and whole values (Gathered) are not
  int64_t exposed_comm_ns = 0;  // time in which the compute thread waited for communication
};

// One whole-model measurement of the gradients, the same on every rank. The call that returns it
// has issued it; the first of these to be called waits for the device, as Tensor::item() does, and
// needs no other rank. Valid for good, for any thread; values that were read hold no device memory.
class GradientReport {
 public:
  GradientReport();  // of no gradients: norm 0, finite
  double norm() const;
  bool finite() const;
  // "unit 'layer.3', parameter 'layer.3.weight'": the first in the order of units that any rank
  // found; empty if all are finite.
  std::string first_nonfinite() const;

 private:
  friend class GradientMeasure;
  struct Measurement;
  explicit GradientReport(std::shared_ptr<Measurement> measurement);

  std::shared_ptr<Measurement> measurement_;
};

class Engine {
 public:
  // Shards a model that was built plainly; every rank passes the same architecture. Rank 0's
  // parameter and buffer values win (broadcast once; sparse and quantised buffers must be equal).
  // Requires: collective; `root` is a Unit, on the CPU, with float32, bfloat16 or float16
  //   parameters.
  // Errors: CommError (78) on all ranks if models, options or builds differ; InvalidArgument for
  //   what cannot be sharded, named (sparse gradients, complex, quantised, overlapping, float64).
  template <class Contained>
  Engine(const torch::nn::ModuleHolder<Contained>& root, Mesh mesh, Options options = {})
      : Engine(root.ptr(), std::move(mesh), std::move(options)) {}
  // Takes a model built inside `building`, with its mesh and options. Ends the scope.
  template <class Contained>
  Engine(const torch::nn::ModuleHolder<Contained>& root, BuildScope& building)
      : Engine(root.ptr(), building) {}
  Engine(std::shared_ptr<torch::nn::Module> root, Mesh mesh, Options options = {});
  Engine(std::shared_ptr<torch::nn::Module> root, BuildScope& building);
  // Parameters stay unreadable afterwards ("the engine was destroyed"). Tensors that the engine has
  // handed out keep their memory, and with it the mesh; an optimizer's calls throw.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs one forward of a model whose units were chosen by policy (Options::units): returns
  // f(inputs…), what is made of the model's outputs, by value, as for_each_tensor (tensor_visit.h)
  // looks into it. Inside, operators that are given a parameter gather its unit; outside they
  // throw, and so does whoever moves the model (to()). Floating inputs are cast to param_dtype,
  // where it is set. Run the whole forward in it, on one thread, and backward after it, which needs
  // no scope. With a root that is a fsdp::Unit it is not needed, and only calls f.
  // Requires: every rank touches the same units in the same order.
  template <class F, class... Inputs>
  auto forward(F&& f, Inputs&&... inputs) {
    using Result = std::invoke_result_t<F&, std::decay_t<Inputs>&&...>;
    static_assert(!std::is_void_v<Result> && !std::is_reference_v<Result>,
                  "Engine::forward: f returns by value what backward starts from (the loss, or "
                  "the model's outputs)");
    UnitCall call(*this);
    return unit_detail::run_in<Result, std::decay_t<Inputs>...>(
        call, f, std::decay_t<Inputs>(std::forward<Inputs>(inputs))...);
  }

  const Mesh& mesh() const;
  const Options& options() const;
  // What this rank computes on: inputs and targets belong there.
  at::Device device() const;

  // Every parameter that the engine shards, in the order of units and of registration; local
  // views, no communication. Any element-wise torch::optim optimizer works on `local` of the
  // trainable ones: the engine notices the change by itself at the next forward, for which it reads
  // the shards once more as long as somebody holds one of these tensors. Operators on `local` and
  // its `.grad` throw StateError where a step would be wrong, and where they make a number of a
  // part (docs/migration.md).
  std::vector<ShardedParameter> sharded_parameters();
  // Of these the `local` of each trainable one: what LibTorch's optimizers take.
  //   torch::optim::SGD optimizer(engine.parameters(), 0.1);  // was: model->parameters()
  std::vector<at::Tensor> parameters();

  // Hands the main gradients back. Optimizers' zero_grad calls it.
  void zero_grad();
  // Norm over all trainable parameters of all ranks (norm_type 1, 2 or infinity) and the non-finite
  // decision, in one all_reduce. Collective. The norm is 0 if there is no gradient.
  GradientReport measure_gradients(double norm_type = 2.0);
  // measure_gradients, then gradients *= min(1, max_norm / (norm + 1e-6)): one more pass over them,
  // which fsdp's optimizers do in their step. Returns what was measured before.
  // Errors: InvalidArgument if max_norm is negative or NaN, before anything is done.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);

  // Whole parameters (float32, from the main shards), one after the other, on every rank; each unit
  // is gathered once and dropped before the next. Collective. The tensor is valid during the call
  // only.
  void visit_full_parameters(
      const std::function<void(std::string_view fqn, const at::Tensor& value)>& visit);

  // Buffers are each rank's own after construction: running statistics (BatchNorm) drift apart, and
  // who saves on rank 0 saves rank 0's. This makes them equal: floating ones become the mean over
  // the ranks, all others rank 0's; sparse and quantised ones are left alone. Collective, outside
  // forward and backward. fsdp::SyncBatchNorm keeps them equal by itself.
  void average_buffers();

  // Valid from construction on; refined once the real order of units was seen (first step).
  MemoryPlan memory_plan() const;
  EngineStats stats() const;
  void reset_peak_memory();
  // A table for people: units, parameters, bytes by category; printed at start by the examples.
  std::string describe() const;

  // Observes "unshard", "forward", "pre_backward", "reduce", "reshard", … with the unit's FQN, in
  // host order (tests, traces). Pass nullptr to stop.
  using EventObserver = std::function<void(std::string_view event, std::string_view unit_fqn)>;
  void observe_events(EventObserver observer);

 private:
  friend struct EngineAccess;  // the library's own: src/engine/engine_parts.h
  friend class InputSpan;
  friend class UnitCall;
  std::shared_ptr<EngineParts> state_;  // shared with units, weakly: hooks of old graphs look here
};

// While alive, the named unit's parameters (all units' if no FQN is given) can be read whole, in
// param_dtype, through the module. On destruction what was modified in place is written back to the
// main shards: each rank its own slice (of ranks that hold the same one, the lowest), or rank 0's
// values on all ranks. torch::load of a model and other calls that give a parameter new storage
// count as a modification; torch::save sees whole values.
// Requires: collective; outside forward and backward, which throw inside, as does a second
// Gathered.
enum class WriteBack : uint8_t { kNone, kOwnSlice, kFromRankZero };
class Gathered {
 public:
  explicit Gathered(Engine& engine, WriteBack write_back = WriteBack::kNone);
  Gathered(Engine& engine, std::string_view unit_fqn, WriteBack write_back = WriteBack::kNone);
  ~Gathered() noexcept(false);
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  void bind();

  EngineParts& state_;
  WriteBack write_back_;
  std::vector<int> units_;
};

// While alive with `reduce` false (kNone), backwards keep whole gradients on each rank instead of
// reducing them (fewer reductions, 4 bytes a parameter more); the first backward outside reduces
// the sum. With kInside they are reduced within groups of ranks, and the first backward outside
// sums over the groups what has come together: FSDP2's set_requires_all_reduce. A step before that
// throws, and so does a backward with kInside after one that has summed over the groups.
class GradSync {
 public:
  GradSync(Engine& engine, bool reduce)
      : GradSync(engine, reduce ? GradientSync::kAll : GradientSync::kNone) {}
  GradSync(Engine& engine, GradientSync sync);
  ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

 private:
  EngineParts& state_;
  GradientSync previous_;
};

}  // namespace fsdp
