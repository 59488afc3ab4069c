// The engine shards a model made of units. It gathers each unit's parameters before the unit's
// forward and before its backward. It reduces a unit's gradients when backward has computed all of
// them.
//
//   fsdp::Mesh mesh = fsdp::Mesh::from_env();
//   fsdp::Unit<Net> model(…);                       // contains units; the root is a unit too
//   fsdp::Engine engine(model, mesh, {.prefetch_units = 1});
//   fsdp::AdamW optimizer(engine, {.lr = 3e-4});
//   loss = …model(x)…; loss.backward(); optimizer.clip_grad_norm(1.0); optimizer.step();
//   optimizer.zero_grad();
//
// After construction every parameter of the model is sharded. Reading a parameter outside its
// unit's forward or backward throws. Every rank must run the same units in the same order. If the
// units or their order differ between ranks, an error names both ranks (docs/errors.md). The engine
// never continues with wrong results.
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

// A scope in which a model is built and sharded unit by unit. The scope ends when an engine is made
// from it. Each Unit is sharded when its constructor returns, so a rank never holds more than its
// shards and one whole unit.
//
// For any world size, the initial values equal those of the unsharded model that is constructed
// after torch::manual_seed(options.seed) on the same kind of device. If the device is a GPU, a
// tensor for which the program names no device is made on the GPU, as under Python's
// torch.set_default_device. The GPU's generator then draws random values, which differ from those
// of the CPU's generator.
// Requires: each parameter is initialised in the constructor of the unit that owns it. A parent's
//   constructor must not initialise parameters of a unit inside the parent; such code throws.
//   Tensors that the host fills through data_ptr or accessor must be made with torch::kCPU.
//   Options::ignore must not be set; it needs a model that was built without a BuildScope.
// Effects: holds a process-wide lock until an engine is made from the scope, so thread ranks build
//   their models one after another. If a thread rank calls a collective inside the scope, the call
//   throws a StateError.
class BuildScope {
 public:
  explicit BuildScope(Mesh mesh, Options options = {});
  ~BuildScope();
  BuildScope(const BuildScope&) = delete;
  BuildScope& operator=(const BuildScope&) = delete;

  // Shards a module that will be a unit by Options::units, and returns the module. Use this
  // function if the program makes modules separately and then adds them to the model:
  // `layers->push_back(building.shard(Block(64)))`.
  template <class Module>
  Module shard(Module module) {
    shard_now({&*module});
    return module;
  }
  // Shards several layers that will be one unit (each_child_of with `layers` above 1). Call this
  // function after all of these layers were made: `for (auto& layer :
  // building.shard(std::vector{Block(64), Block(64)})) …`.
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

// One parameter and this rank's slice of it. `local` has the elements [begin, begin +
// local.numel()) of the parameter, counted in the parameter's memory order (row-major for
// contiguous parameters). `local` may be empty on this rank.
struct ShardedParameter {
  std::string fqn;
  std::vector<int64_t> shape;  // of the whole parameter
  bool trainable = true;
  int64_t begin = 0;
  at::Tensor local;  // 1-d float32 view of the main shard; `.grad` is a view of the main gradient
};

// Counters of this rank since the engine's construction.
struct EngineStats {
  MemoryStats memory;
  int64_t all_gathers = 0;
  int64_t reduces = 0;          // reduce_scatter or all_reduce of gradients
  int64_t passes = 0;           // backwards that reduced gradients
  Traffic sent;                 // bytes that this rank sent; excludes mapped shards and `Gathered`
  int64_t exposed_comm_ns = 0;  // time for which the compute thread waited for communication
};

// The norm of all gradients, and whether they are finite. The report is equal on every rank. The
// function that returns the report issues the work and returns without waiting for it. The first
// call of an accessor waits for this rank's device, as Tensor::item() does. It does not wait for
// other ranks. Any thread may read the report, even after the engine's destruction. After the first
// read, the report holds no device memory.
// Errors: the accessors throw StateError if the engine was destroyed and its device failed before
//   the values were read.
class GradientReport {
 public:
  GradientReport();  // a report without gradients: norm 0, finite
  double norm() const;
  bool finite() const;
  // Returns the first parameter, in the order of units, that has a non-finite gradient on any rank.
  // The format is "unit 'layer.3', parameter 'layer.3.weight'". Returns an empty string if all
  // gradients are finite.
  std::string first_nonfinite() const;

 private:
  friend class GradientMeasure;
  struct Measurement;
  explicit GradientReport(std::shared_ptr<Measurement> measurement);

  std::shared_ptr<Measurement> measurement_;
};

class Engine {
 public:
  // Shards a model that was built without a BuildScope. The values of parameters and buffers are
  // broadcast once from rank 0. Sparse and quantised buffers are not broadcast; they must be equal
  // on all ranks.
  // Requires: collective; the same architecture on every rank. `root` is on the CPU. It is a Unit,
  //   unless Options::units is set. Its parameters are float32, bfloat16 or float16.
  // Errors: CommError (78) on all ranks if the models, options or builds differ between ranks.
  //   InvalidArgument that names the parameter if a parameter cannot be sharded (sparse gradients,
  //   complex, quantised, overlapping, float64).
  template <class Contained>
  Engine(const torch::nn::ModuleHolder<Contained>& root, Mesh mesh, Options options = {})
      : Engine(root.ptr(), std::move(mesh), std::move(options)) {}
  // Shards the model built inside `building`, with the scope's mesh and options, and ends the
  // scope.
  template <class Contained>
  Engine(const torch::nn::ModuleHolder<Contained>& root, BuildScope& building)
      : Engine(root.ptr(), building) {}
  Engine(std::shared_ptr<torch::nn::Module> root, Mesh mesh, Options options = {});
  Engine(std::shared_ptr<torch::nn::Module> root, BuildScope& building);
  // Destroys the engine. The parameters remain sharded, so reading a parameter still throws ("the
  // engine was destroyed"). Tensors that the engine returned keep their memory and the mesh alive.
  // Functions of the engine's optimizers throw.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs one forward of a model whose units Options::units chose, and returns f(inputs…) by value.
  // for_each_tensor (tensor_visit.h) must find the tensors of the result. Inside f, an operator
  // that receives a parameter gathers the parameter's unit. Outside f, such an operator throws.
  // Moving the model (to()) throws, too. Floating inputs are cast to param_dtype if it is set. If
  // the root is an fsdp::Unit, this function only calls f.
  // Requires: f runs the whole forward on one thread. Every rank uses the same units in the same
  //   order. backward() is called outside f.
  template <class F, class... Inputs>
  auto forward(F&& f, Inputs&&... inputs) {
    using Result = std::invoke_result_t<F&, std::decay_t<Inputs>&&...>;
    static_assert(!std::is_void_v<Result> && !std::is_reference_v<Result>,
                  "Engine::forward: f must return the tensors from which backward starts (the "
                  "loss, or the model's outputs), and must return them by value");
    UnitCall call(*this);
    return unit_detail::run_in<Result, std::decay_t<Inputs>...>(
        call, f, std::decay_t<Inputs>(std::forward<Inputs>(inputs))...);
  }

  const Mesh& mesh() const;
  const Options& options() const;
  // Returns the device on which this rank computes. Inputs and targets must be on it.
  at::Device device() const;

  // Returns every parameter that the engine shards, unit by unit and in the order of registration.
  // Each `local` is a view of this rank's shard; the call issues no collective. Any element-wise
  // torch::optim optimizer can train the `local` tensors of trainable parameters. While a caller
  // holds one of these tensors, each forward also reads all shards to detect changes. An operator
  // on `local` or its `.grad` throws a StateError in two cases (docs/migration.md): an optimizer's
  // step would be wrong at this time, or the operator would reduce only this rank's slice to a
  // number.
  std::vector<ShardedParameter> sharded_parameters();
  // Returns `local` of each trainable parameter, in the form that LibTorch's optimizers expect.
  //   torch::optim::SGD optimizer(engine.parameters(), 0.1);  // was: model->parameters()
  std::vector<at::Tensor> parameters();

  // Frees the main gradients of all parameters. Optimizer::zero_grad frees only the gradients of
  // that optimizer's parameters.
  void zero_grad();
  // Measures the norm over all trainable parameters of all ranks, and detects non-finite gradients,
  // in one all_reduce. Collective. The norm is 0 if there is no gradient.
  // Errors: InvalidArgument if norm_type is not 1, 2 or infinity.
  GradientReport measure_gradients(double norm_type = 2.0);
  // Measures the gradients as measure_gradients does, multiplies them by min(1, max_norm / (norm +
  // 1e-6)), and returns the measurement from before the multiplication. The multiplication reads
  // and writes all gradients once more. Optimizer::clip_grad_norm avoids this: the optimizer's step
  // scales the gradients.
  // Errors: InvalidArgument if max_norm is negative or NaN, or if norm_type is not 1, 2 or
  //   infinity. Nothing is changed then.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);

  // Calls `visit` with each whole parameter (float32, from the main shards) on every rank. Each
  // unit is gathered once and freed before the next one. Collective. `value` is valid only during
  // the call.
  void visit_full_parameters(
      const std::function<void(std::string_view fqn, const at::Tensor& value)>& visit);

  // Makes buffers equal on all ranks. Floating buffers become the mean over the ranks. Other
  // buffers get rank 0's values. Sparse and quantised buffers are not changed. After construction
  // each rank updates its own buffers, so running statistics (BatchNorm) differ between ranks.
  // fsdp::SyncBatchNorm keeps them equal without this call. Collective; outside forward and
  // backward.
  void average_buffers();

  // Returns the plan of engine buffers. The plan exists from construction on. The first plan
  // assumes the order of registration. After the first step, the plan uses the order in which the
  // units ran.
  MemoryPlan memory_plan() const;
  EngineStats stats() const;
  // Resets the peaks of MemoryStats to the bytes currently in use.
  void reset_peak_memory();
  // Returns a table of units, parameters and bytes by category. The examples print it at start.
  std::string describe() const;

  // Makes the engine call `observer` for each event of this rank, in order. `event` is the name of
  // the event ("unshard", "forward", "pre_backward", "reduce", "reshard", …) and `unit_fqn` names
  // the unit. nullptr removes the observer. Tests and traces use this function.
  using EventObserver = std::function<void(std::string_view event, std::string_view unit_fqn)>;
  void observe_events(EventObserver observer);

 private:
  friend struct EngineAccess;  // internal: src/engine/engine_parts.h
  friend class InputSpan;
  friend class UnitCall;
  std::shared_ptr<EngineParts> state_;  // units and hooks of old graphs hold a weak_ptr
};

// Selects the values that the destructor of Gathered writes to the main shards.
enum class WriteBack : uint8_t {
  kNone,  // nothing
  // Modified parameters: each rank writes its slice of its own values. If several ranks hold the
  // same slice, all of them write the values of the lowest of these ranks.
  kOwnSlice,
  kFromRankZero  // modified parameters: each rank writes its slice of rank 0's values
};

// A scope in which the program can read the whole parameters of one unit, or of all units, through
// the module. Values are in param_dtype. A call that replaces a parameter's storage (torch::load of
// a model) counts as a modification. Inside the scope, torch::save writes whole parameters.
// Requires: collective; outside forward and backward, and no forward or backward runs inside the
//   scope. Only one Gathered object may exist at a time.
// Errors: StateError if a requirement is violated. The destructor throws StateError if a parameter
//   was modified although WriteBack::kNone was given.
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

// A scope that changes how gradients are reduced in the backward passes inside it.
//   kNone (`reduce` false): each rank keeps whole gradients and does not reduce them. This needs 4
//   more bytes per element of the parameters. The next backward outside the scope reduces the
//   accumulated gradients. So several backward passes need only one reduction.
//   kInside: gradients are reduced within groups. The next backward outside the scope sums the
//   gradients over the groups (FSDP2's set_requires_all_reduce).
// Errors: after a backward in the scope, an optimizer's step throws StateError until a backward
//   outside the scope has run. A backward inside a kInside scope throws StateError if an earlier
//   backward of the same step has already summed over the groups.
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
