#include "engine/build_scope.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/heap.h"
#include "engine/device_moves.h"
#include "engine/storage_holders.h"
#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "libtorch/torch_compat.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// The open scope of the calling thread; null if there is none. It is a thread-local variable
// because a unit's constructor has no argument for the scope.
thread_local BuildState* current_scope = nullptr;
// Thread ranks share LibTorch's CPU generator, and all ranks must draw the same initial values.
// Therefore only one rank builds at a time.
std::mutex& construction_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

BuildScope::BuildScope(Mesh mesh, Options options)
    : state_(std::make_unique<BuildState>(std::move(mesh), std::move(options))) {}
BuildScope::~BuildScope() = default;
const Mesh& BuildScope::mesh() const { return state_->mesh; }
const Options& BuildScope::options() const { return state_->options; }

void BuildScope::shard_now(const std::vector<torch::nn::Module*>& layers) {
  // The layers become children of a temporary module. A single walk then finds each parameter once,
  // even a parameter that several layers share.
  torch::nn::Module unit("unit of several layers");
  for (torch::nn::Module* layer : layers) {
    if (dynamic_cast<UnitBase*>(layer) != nullptr) {
      throw InvalidArgument({.what = "BuildScope::shard got a fsdp::Unit, which is sharded already",
                             .hint = "pass only plain modules to BuildScope::shard; a fsdp::Unit "
                                     "is sharded when it is constructed"});
    }
    unit.register_module(std::to_string(unit.children().size()), layer->shared_from_this());
  }
  if (layers.empty()) return;
  state_->shard(layers.front(), layers.size() == 1 ? *layers.front() : unit);
}

BuildState::BuildState(Mesh mesh_in, Options options_in)
    : mesh(std::move(mesh_in)),
      options(std::move(options_in)),
      precision(Precision::of(options.mixed_precision)),
      context(with_place([] { return "construction of a BuildScope"; },
                         [&] { return std::make_unique<ShardContext>(mesh, options); })),
      building_(construction_mutex(), std::defer_lock) {
  ShardLayout::require_granule(options.shard_granule);
  if (options.ignore) {
    throw InvalidArgument(
        {.what = "Options::ignore is not supported under a BuildScope",
         .cause = "a unit is sharded before its name in the model is known",
         .hint = "build without a BuildScope and pass mesh and options to the engine"});
  }
  if (current_scope != nullptr) {
    throw StateError(
        {.what = "another BuildScope is open",
         .hint = "pass the open BuildScope to its engine before you build the next model"});
  }
  building_.lock();
  alone_.emplace("an open BuildScope");
  default_device_.emplace(context->streams.torch_device);
  return_freed_blocks();
  // All ranks draw the same initial values, so no broadcast is needed. finish() seeds each rank
  // differently, so that dropout differs between ranks.
  at::manual_seed(options.seed);
  // current_scope is set last. If an earlier statement throws, ~BuildState does not run and could
  // not reset current_scope.
  current_scope = this;
}

BuildState::~BuildState() { finish(); }

void BuildState::finish() {
  if (finished || !building_.owns_lock()) return;
  finished = true;
  current_scope = nullptr;
  default_device_.reset();
  alone_.reset();
  at::manual_seed(options.seed + static_cast<uint64_t>(mesh.rank()));
  building_.unlock();
  keep_freed_blocks();
}

void BuildState::shard_if_building(const UnitBase& unit, torch::nn::Module& module) {
  if (current_scope != nullptr) current_scope->shard(&unit, module);
}

void BuildState::forget_if_building(const UnitBase& unit) {
  if (current_scope != nullptr) current_scope->forget(unit);
}

// Drops a unit that is destroyed before an engine owned it, because the addresses of the unit and
// its parameters can be reused.
void BuildState::forget(const UnitBase& unit) {
  const auto found = units.find(&unit);
  if (found == units.end()) return;
  for (const FoundParameter& each : found->second.parameters) {
    sharded_.erase(each.tensor.unsafeGetTensorImpl());
  }
  for (const Buffer& main : found->second.main) context->main->ledger().hold(-main.bytes());
  units.erase(found);
}

const void* BuildState::key_of(const FoundUnit& unit) {
  return unit.unit != nullptr ? static_cast<const void*>(unit.unit)
                              : unit.modules.front().module.get();
}

void BuildState::shard(const void* unit, torch::nn::Module& module) {
  // Excludes the parameters of inner units, which were sharded earlier, when the constructors of
  // these units returned.
  const auto known = [&](const at::Tensor& tensor) {
    return sharded_.contains(tensor.unsafeGetTensorImpl());
  };
  auto parameters = find_parameters(module, known, context->streams.torch_device);
  check_holders(module, parameters);
  std::vector<ParameterSpec> specs;
  for (const FoundParameter& found : parameters) specs.push_back(spec_of(found, precision.param));
  const UnitCollectives collectives = collectives_for(*context, options.strategy);
  ShardLayout layout(std::move(specs), collectives.main_ranks(), options.shard_granule);
  move_parameters(parameters, *context);
  std::vector<Buffer> main = with_place(
      [&] { return "construction of a unit of type " + module.name(); },
      [&] {
        return slice_parameters(layout, collectives.main_rank(mesh.rank()), parameters, *context);
      });
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& tensor = parameters[i].tensor;
    const ParameterSpec& spec = layout.parameters()[i];
    // The parameter keeps its TensorImpl, shape and dtype; its memory is freed. Until the engine
    // binds the unit's own storage, an access to the parameter throws the message below.
    const torch_compat::BoundStorage unreadable(
        static_cast<int64_t>(tensor.nbytes()), tensor.device(),
        fmt::format("fsdp: parameter '{}' was sharded when its unit was constructed and cannot be "
                    "read or written; hint: initialise parameters in the constructor of the unit "
                    "that owns them; if a forward reads the parameter, register its unit in the "
                    "engine's model (register_module)",
                    parameters[i].fqn));
    tensor.set_data(unreadable.view(*dtype_of(tensor.scalar_type()), 0, spec.shape, spec.strides));
    sharded_.insert(tensor.unsafeGetTensorImpl());
  }
  units.insert_or_assign(unit,
                         BuiltUnit{std::move(parameters), std::move(layout), std::move(main)});
}

ParameterSpec spec_of(const FoundParameter& found, const std::optional<DType>& param_dtype) {
  const at::Tensor& tensor = found.tensor;
  const DType built = *dtype_of(tensor.scalar_type());
  DType computed = param_dtype.value_or(built);
  // LibTorch's normalisation kernels require that a parameter has the type of its running
  // statistics.
  if (found.has_statistics && size_of(computed) < size_of(built)) computed = built;
  return {.fqn = found.fqn,
          .shape = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .dtype = computed,
          .trainable = tensor.requires_grad(),
          .numel = tensor.numel()};
}

std::vector<Buffer> slice_parameters(const ShardLayout& layout, int main_rank,
                                     const std::vector<FoundParameter>& parameters,
                                     ShardContext& context) {
  std::vector<Buffer> main;
  for (size_t s = 0; s < layout.segments().size(); ++s) {
    const int segment = static_cast<int>(s);
    main.push_back(
        context.main->allocate(layout.segments()[s].slice_numel * size_of(DType::kFloat32)));
    context.main->ledger().hold(main.back().bytes());
    std::vector<kernels::CastRun> runs;
    for (const Interval& interval : layout.intervals(segment, main_rank)) {
      const at::Tensor& tensor = parameters[interval.parameter].tensor;
      const DType dtype = *dtype_of(tensor.scalar_type());
      if (interval.numel == 0) continue;
      const auto* source = static_cast<const std::byte*>(tensor.const_data_ptr());
      runs.push_back({source + interval.begin * size_of(dtype),
                      main.back().at(interval.offset * size_of(DType::kFloat32)), interval.numel,
                      dtype, DType::kFloat32});
    }
    kernels::cast_pack(*context.streams.compute, runs);
  }
  // If main shards are in host memory, the host reads them, so compute must have finished writing
  // them.
  context.main->settle_compute();
  return main;
}

}  // namespace fsdp
