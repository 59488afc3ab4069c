// The engine shards a model made of units. It gathers each unit's parameters before the unit's
// forward and backward, and reduces its gradients when backward has finished the unit.
//
//   fsdp::Mesh mesh = fsdp::Mesh::from_env();
//   fsdp::Unit<Net> model(…);                       // contains units; the root is a unit too
//   fsdp::Engine engine(model, mesh, {.prefetch_units = 1});
//   fsdp::AdamW optimizer(engine, {.lr = 3e-4});
//   loss = …model(x)…; loss.backward(); optimizer.clip_grad_norm(1.0); optimizer.step();
//   optimizer.zero_grad();
//
// After construction every parameter of the model is sharded: reading one outside its unit's
// forward or backward throws. Every rank must run the same units in the same order. A difference
// between ranks ends in an error that names both sides, never in a wrong number (docs/errors.md).
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

// A scope in which a model is built unit by unit, until an engine is made from it. Each Unit is
// sharded when its constructor returns, so a rank never holds more than its shards and one unit.
//
// Initial values equal those of a plain construction after torch::manual_seed(options.seed), for
// any world size. On a GPU they differ from the CPU's: a tensor made without a device is made on
// the GPU, as under Python's torch.set_default_device, and the GPU's generator draws.
// Requires: each parameter is initialised in the constructor of the unit that owns it; a parent
//   that initialises a unit's parameters throws. Tensors that the host fills through data_ptr or
//   accessor are made with torch::kCPU. Options::ignore is not set (ignored parameters need a plain
//   build).
// Effects: holds a process-wide lock until an engine is made from the scope, so thread ranks build
//   one after another; a collective of a thread rank inside throws a StateError.
class BuildScope {
 public:
  explicit BuildScope(Mesh mesh, Options options = {});
  ~BuildScope();
  BuildScope(const BuildScope&) = delete;
  BuildScope& operator=(const BuildScope&) = delete;

  // Shards a module that Options::units will choose, and returns it. Use it where a model is put
  // together from parts: `layers->push_back(building.shard(Block(64)))`.
  template <class Module>
  Module shard(Module module) {
    shard_now({&*module});
    return module;
  }
  // Shards several layers that will be one unit (each_child_of with a number), once all of them
  // exist: `for (auto& layer : building.shard(std::vector{Block(64), Block(64)})) …`.
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

// One parameter as this rank holds it: elements [begin, begin + local.numel()) of the parameter in
// its memory order (row-major for contiguous parameters). `local` may be empty on this rank.
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
  int64_t reduces = 0;  // reduce_scatter or all_reduce of gradients
  int64_t passes = 0;   // backwards that reduced
  Traffic sent;  // bytes sent by this rank, without mapped shards and whole values (Gathered)
  int64_t exposed_comm_ns = 0;  // the compute thread's waits for communication
};

// One measurement of all gradients, equal on every rank. The call that returns it issues the work.
// The first accessor called waits for the device, as Tensor::item() does, and for no other rank.
// Any thread may read it, also after the engine is gone. It holds no device memory once it was
// read.
// Errors: StateError from the accessors if the engine is gone and its device failed before the
//   values were read.
class GradientReport {
 public:
  GradientReport();  // no gradients: norm 0, finite
  double norm() const;
  bool finite() const;
  // Returns the first non-finite parameter in the order of units, on any rank, as "unit 'layer.3',
  // parameter 'layer.3.weight'"; empty if all gradients are finite.
  std::string first_nonfinite() const;

 private:
  friend class GradientMeasure;
  struct Measurement;
  explicit GradientReport(std::shared_ptr<Measurement> measurement);

  std::shared_ptr<Measurement> measurement_;
};

class Engine {
 public:
  // Shards a model that was built without a BuildScope. Rank 0's parameter and buffer values are
  // broadcast once (sparse and quantised buffers must be equal on all ranks).
  // Requires: collective; the same architecture on every rank; `root` is on the CPU and is a Unit,
  //   unless Options::units is set; its parameters are float32, bfloat16 or float16.
  // Errors: CommError (78) on all ranks if models, options or builds differ; InvalidArgument that
  //   names a parameter that cannot be sharded (sparse gradients, complex, quantised, overlapping,
  //   float64).
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
  // Parameters stay unreadable afterwards ("the engine was destroyed"). Tensors that the engine
  // returned keep their memory, and with it the mesh. Calls of its optimizers throw.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs one forward of a model whose units Options::units chose, and returns f(inputs…) by value;
  // for_each_tensor (tensor_visit.h) must see the tensors of the result. Inside f an operator that
  // receives a parameter gathers the parameter's unit. Outside it throws, and so does moving the
  // model (to()). Floating inputs are cast to param_dtype if it is set. If the root is a
  // fsdp::Unit, the call only runs f.
  // Requires: f runs the whole forward, on one thread; every rank touches the same units in the
  //   same order. backward() follows outside.
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
  // Returns the device on which this rank computes; inputs and targets belong there.
  at::Device device() const;

  // Returns every parameter that the engine shards, by unit and in the order of registration. The
  // views are local; nothing is communicated. Any element-wise torch::optim optimizer works on
  // `local` of the trainable ones. While a caller holds one of these tensors, each forward reads
  // the shards once more to detect changes. An operator on `local` or its `.grad` throws a
  // StateError where a step would be wrong, or where it would reduce a part to a number
  // (docs/migration.md).
  std::vector<ShardedParameter> sharded_parameters();
  // Returns `local` of each trainable parameter, as LibTorch's optimizers expect it.
  //   torch::optim::SGD optimizer(engine.parameters(), 0.1);  // was: model->parameters()
  std::vector<at::Tensor> parameters();

  // Frees the main gradients. zero_grad of fsdp's optimizers frees those of their parameters.
  void zero_grad();
  // Measures the norm over all trainable parameters of all ranks, and whether all gradients are
  // finite, in one all_reduce. Collective. The norm is 0 if there is no gradient.
  // Errors: InvalidArgument if norm_type is not 1, 2 or infinity.
  GradientReport measure_gradients(double norm_type = 2.0);
  // Measures as measure_gradients, multiplies the gradients by min(1, max_norm / (norm + 1e-6)),
  // and returns the measurement from before. This costs one more pass over the gradients; fsdp's
  // optimizers scale them in their step instead.
  // Errors: InvalidArgument if max_norm is negative or NaN, or for norm_type, before anything is
  //   changed.
  GradientReport clip_grad_norm(double max_norm, double norm_type = 2.0);

  // Calls `visit` with each whole parameter (float32, from the main shards) on every rank. Each
  // unit is gathered once and freed before the next. Collective. `value` is valid during the call
  // only.
  void visit_full_parameters(
      const std::function<void(std::string_view fqn, const at::Tensor& value)>& visit);

  // Makes buffers equal on all ranks: floating ones become the mean over the ranks, others rank
  // 0's; sparse and quantised ones are left alone. After construction each rank updates its own
  // buffers, so running statistics (BatchNorm) differ, and rank 0 saves its own.
  // fsdp::SyncBatchNorm keeps them equal without this call. Collective; outside forward and
  // backward.
  void average_buffers();

  // Returns the plan of engine buffers. It exists from construction on and is refined after the
  // first step, when the order of units is known.
  MemoryPlan memory_plan() const;
  EngineStats stats() const;
  // Sets the peaks of MemoryStats to the bytes in use.
  void reset_peak_memory();
  // Returns a table of units, parameters and bytes by category; the examples print it at start.
  std::string describe() const;

  // Calls `observer` with "unshard", "forward", "pre_backward", "reduce", "reshard", … and the
  // unit's FQN, in the order in which this rank performs them. nullptr ends it. For tests and
  // traces.
  using EventObserver = std::function<void(std::string_view event, std::string_view unit_fqn)>;
  void observe_events(EventObserver observer);

 private:
  friend struct EngineAccess;  // internal: src/engine/engine_parts.h
  friend class InputSpan;
  friend class UnitCall;
  std::shared_ptr<EngineParts> state_;  // units and hooks of old graphs hold it weakly
};

// Selects the values that the destructor of Gathered writes to the main shards.
enum class WriteBack : uint8_t {
  kNone,         // none
  kOwnSlice,     // modified parameters, each rank its own slice; of equal slices the lowest rank's
  kFromRankZero  // modified parameters, rank 0's values on all ranks
};

// A scope in which whole parameters can be read through the module, in param_dtype: those of the
// named unit, or of all units. A call that gives a parameter new storage (torch::load of a model)
// counts as a modification; torch::save sees whole values.
// Requires: collective; outside forward and backward, and neither runs inside; one Gathered at a
//   time.
// Errors: StateError if that is violated, and from the destructor if a parameter was modified under
//   kNone.
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

// A scope that changes how backwards inside it reduce gradients.
//   kNone (`reduce` false): each rank keeps whole gradients, 4 bytes a parameter more. The next
//   backward outside reduces the sum. This saves reductions while gradients accumulate.
//   kInside: gradients are reduced within groups. The next backward outside sums over the groups
//   (FSDP2's set_requires_all_reduce).
// Errors: StateError from an optimizer's step before that backward, and from a backward with
//   kInside after one that has summed over the groups in the same step.
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
