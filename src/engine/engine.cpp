// Implements Engine with its parts (engine_parts.h).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/heap.h"
#include "comm/mesh_state.h"
#include "engine/attach.h"
#include "engine/build_scope.h"
#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "libtorch/torch_compat.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

const char* construction() { return "construction of the engine"; }

// Returns the class of a unit, as "a BlockImpl", or for several modules "4 modules: BlockImpl,
// NormImpl".
std::string types_of(const std::vector<NamedModule>& modules) {
  std::vector<std::string> types;
  for (const NamedModule& each : modules) {
    if (std::ranges::find(types, each.module->name()) != types.end()) continue;
    types.push_back(each.module->name());
  }
  const std::string text = fmt::format("{}", fmt::join(types, ", "));
  return modules.size() == 1 ? "a " + text : fmt::format("{} modules: {}", modules.size(), text);
}

}  // namespace

Engine::Engine(std::shared_ptr<torch::nn::Module> root, Mesh mesh, Options options) {
  with_place(construction, [&] {
    auto context = std::make_unique<ShardContext>(std::move(mesh), options);
    state_ = std::make_shared<EngineParts>(std::move(root), std::move(options), std::move(context));
    Attachment(*state_, nullptr).run();
  });
  // The construction of the engine has freed the memory of the whole model. This call first returns
  // that memory to the system. From here on, freed blocks are kept for the next step.
  keep_freed_blocks();
}

Engine::Engine(std::shared_ptr<torch::nn::Module> root, BuildScope& building) {
  BuildState& scope = *building.state_;
  // The scope ends first, so that other thread ranks can build even if this constructor throws.
  scope.finish();
  if (!scope.context) {
    throw StateError({.what = "this BuildScope was passed to an engine before",
                      .hint = "use one BuildScope per model and engine"});
  }
  with_place(construction, [&] {
    state_ =
        std::make_shared<EngineParts>(std::move(root), scope.options, std::move(scope.context));
    Attachment(*state_, &scope).run();
  });
}

// Shuts the parts down explicitly. Optimizers share the ownership of the parts and may outlive the
// engine, so the parts' destructor may run later.
Engine::~Engine() { state_->shut_down(); }

const Mesh& Engine::mesh() const { return state_->context->mesh; }
const Options& Engine::options() const { return state_->model.options; }
at::Device Engine::device() const { return state_->context->streams.torch_device; }

std::vector<ShardedParameter> Engine::sharded_parameters() {
  const std::lock_guard lock(state_->scheduler->mutex);
  state_->follow_compute("sharded_parameters");
  // watch_shards is called before the views are made, because a view can get the key of the trap
  // (touch_trap.h) only when it is made.
  state_->watch_shards();
  std::vector<ShardedParameter> result;
  for (const auto& unit : state_->model.units) {
    const auto& views = with_place([&] { return unit->describe("sharded_parameters"); },
                                   [&]() -> const auto& { return unit->shard->local_views(); });
    for (size_t i = 0; i < views.size(); ++i) {
      const ShardLayout& layout = unit->shard->layout();
      const ParameterSpec& spec = layout.parameters()[i];
      result.push_back({.fqn = spec.fqn,
                        .shape = spec.shape,
                        .trainable = unit->shard->tensors()[i].requires_grad(),
                        .begin = unit->shard->main().local(static_cast<int>(i)).begin,
                        .local = views[i]});
    }
  }
  return result;
}

std::vector<at::Tensor> Engine::parameters() {
  std::vector<at::Tensor> trainable;
  for (ShardedParameter& parameter : sharded_parameters()) {
    if (parameter.trainable) trainable.push_back(std::move(parameter.local));
  }
  return trainable;
}

void Engine::zero_grad() { state_->zero_grad(); }

GradientReport Engine::measure_gradients(double norm_type) {
  return state_->measure_gradients(norm_type, std::numeric_limits<double>::infinity()).report;
}

GradientReport Engine::clip_grad_norm(double max_norm, double norm_type) {
  state_->updates.require_off("clip_grad_norm",
                              "the norm of all gradients is known only after the last update");
  state_->require_between_passes("clip_grad_norm");
  // No collective sends max_norm. The annotation lets the next collective compare max_norm over the
  // ranks.
  state_of(state_->context->mesh)
      .order()
      .note(fmt::format("clip_grad_norm({}, {})", max_norm, norm_type));
  const GradientMeasure::Measured measured = state_->measure_gradients(norm_type, max_norm);
  const at::NoGradGuard no_grad;
  const at::Device device = state_->context->main->torch_device();
  // The coefficient stays in the memory that also holds the main gradients, so the host does not
  // wait for the norm.
  const at::Tensor coefficient =
      torch_compat::wrap(measured.scalars->coefficient(), 1, DType::kFloat32, device)[0];
  for (const auto& unit : state_->model.units) {
    for (const MainSegment& segment : unit->shard->main_segments()) {
      if (segment.grad == nullptr) continue;
      torch_compat::wrap(segment.grad, segment.numel, DType::kFloat32, device).mul_(coefficient);
    }
  }
  return measured.report;
}

void Engine::visit_full_parameters(
    const std::function<void(std::string_view fqn, const at::Tensor& value)>& visit) {
  const at::NoGradGuard no_grad;
  state_->follow_compute("visit_full_parameters");
  std::vector<Buffer> whole;
  for (const auto& unit : state_->model.units) {
    {
      const std::lock_guard lock(state_->scheduler->mutex);
      // The mutex is held only for the collective, because `visit` is the caller's code and may
      // call the engine.
      with_place([&] { return unit->describe("gather"); },
                 [&] { unit->shard->main().copy_whole(whole); });
    }
    const ShardLayout& layout = unit->shard->layout();
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      const int parameter = static_cast<int>(i);
      const ParameterSpec& spec = layout.parameters()[i];
      float* data = static_cast<float*>(whole[layout.segment_of(parameter)].data());
      const at::Device device = state_->context->streams.torch_device;
      const at::Tensor value = at::for_blob(data + layout.place_of(parameter).offset, spec.shape)
                                   .strides(spec.strides)
                                   .options(at::TensorOptions().dtype(at::kFloat).device(device))
                                   .target_device(device)
                                   .make_tensor();
      visit(spec.fqn, value);
    }
    // `whole` is freed before the next unit is gathered, so that at most one whole unit exists.
    whole.clear();
  }
}

MemoryPlan Engine::memory_plan() const {
  const std::lock_guard lock(state_->scheduler->mutex);
  return state_->memory.plan();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(state_->scheduler->mutex);
  MemoryStats memory = state_->context->memory.ledger.stats();
  const MemoryStats& host = state_->context->memory.host_ledger.stats();
  memory.host_in_use = host.in_use;
  memory.host_peak = host.peak;
  memory.host_held_bytes = host.held_bytes;
  if (const auto& meter = state_->context->memory.cap().meter) {
    const MeterReading reading = meter->reading();
    memory.torch_in_use = reading.now.torch;
    memory.torch_peak = reading.peaks.torch;
    memory.device_peak = reading.peak.total();
  }
  memory.system_allocations += host.system_allocations;
  memory.overflow_slots += host.overflow_slots;
  return {.memory = memory,
          .all_gathers = state_->context->comms.all_gathers,
          .reduces = state_->context->comms.reduces,
          .passes = state_->pass.count(),
          .sent = state_->context->comms.sent,
          .exposed_comm_ns = state_->context->streams.exposed_comm_ns};
}

void Engine::reset_peak_memory() {
  const std::lock_guard lock(state_->scheduler->mutex);
  state_->context->memory.ledger.reset_peak();
  state_->context->memory.host_ledger.reset_peak();
  if (const auto& meter = state_->context->memory.cap().meter) meter->reset_peak();
}

std::string Engine::describe() const {
  const std::lock_guard lock(state_->scheduler->mutex);
  std::string table = fmt::format("{:<33} {:>6} {:>13} {:>11} {:>11}\n", "unit", "params",
                                  "elements", "gathered", "this rank");
  int64_t elements = 0;
  std::string last_modules;
  for (const auto& unit : state_->model.units) {
    const ShardLayout& layout = unit->shard->layout();
    elements += layout.parameter_numel();
    table += fmt::format("{:<33} {:>6} {:>13} {:>11} {:>11}\n",
                         unit->shard->fqn().empty() ? "(root)" : unit->shard->fqn(),
                         layout.parameters().size(), layout.parameter_numel(),
                         format_bytes(layout.unsharded_bytes()),
                         format_bytes(layout.slice_numel() * size_of(DType::kFloat32)));
    // A unit chosen by policy may have a class that the user never named, so its class is printed.
    // Consecutive units of the same class print it once.
    const std::string modules = types_of(unit->place.modules);
    if (unit->is_by_policy() && modules != last_modules) {
      table += fmt::format("  is {}\n", modules.substr(0, 77));
    }
    last_modules = modules;
  }
  table += fmt::format("{} units, {} parameters in {} ranks\n\n", state_->model.units.size(),
                       elements, state_->context->mesh.world_size());
  if (state_->model.units.size() == 1) {
    table +=
        "warning: the root is the only unit, so all parameters are gathered at once;\n"
        "hint: make its layers units, by fsdp::Unit<Block> or Options::units\n\n";
  }
  const std::vector<std::string> training = state_->training->names();
  if (!training.empty()) table += fmt::format("trained by {}\n", fmt::join(training, ", "));
  table += state_->memory.plan().to_string();
  if (const int64_t limit = state_->context->memory.cap().limit; limit > 0) {
    table += fmt::format("memory limit {}, LibTorch's tensors included\n", format_bytes(limit));
  }
  return table;
}

void Engine::observe_events(EventObserver observer) { state_->pass.observe(std::move(observer)); }

}  // namespace fsdp
