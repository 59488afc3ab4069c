#include "shard/parameter_bindings.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr std::string_view kSharded = "is sharded and cannot be read or written here";
constexpr std::string_view kShardedHint =
    "call the unit through fsdp::Unit (forward is not virtual: write "
    "list[i]->as<fsdp::Unit<Block>>(), not as<Block>()) and its other methods through "
    "fsdp::UnitScope; read, save or load whole values inside fsdp::Gathered; optimise with "
    "fsdp::AdamW or a LibTorch optimizer on Engine::parameters(); if backward reports this error, "
    "let the unit's forward return every tensor that the loss uses, including auxiliary losses";
// The hint for a parameter of a unit chosen by policy. The engine gathers the parameter before an
// operator runs on it, so only an access without an operator throws.
constexpr std::string_view kTouchedHint =
    "run the model inside Engine::forward, where LibTorch's operators gather the parameters; "
    "before you read their memory directly, pass them to an operator; read, save or load whole "
    "values inside fsdp::Gathered; optimise with fsdp::AdamW or a LibTorch optimizer on "
    "Engine::parameters()";
constexpr std::string_view kGradientHint =
    "pass Engine::parameters() to the optimizer, or use fsdp::AdamW or fsdp::SGD; clip with their "
    "clip_grad_norm or Engine::clip_grad_norm; read gradients in `local.grad()` of "
    "Engine::sharded_parameters()";

}  // namespace

std::string name_of_unit(std::string_view fqn) {
  return fmt::format("unit '{}'", fqn.empty() ? "(root)" : fqn);
}

ParameterBindings::ParameterBindings(const ShardLayout& layout, std::vector<at::Tensor> parameters,
                                     std::string_view unit, touch_trap::Touched* owner)
    : layout_(layout),
      unit_(name_of_unit(unit)),
      tensors_(std::move(parameters)),
      guards_(tensors_.size()),
      versions_(tensors_.size()) {
  const at::NoGradGuard no_grad;
  const std::string_view hint = owner == nullptr ? kShardedHint : kTouchedHint;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const ParameterSpec& spec = layout_.parameters()[i];
    storages_.emplace_back(
        spec.numel * size_of(spec.dtype), tensors_[i].device(),
        fmt::format("fsdp: parameter {} {}; hint: {}", name(parameter), kSharded, hint),
        touch_trap::Watch{.owner = owner});
    // The parameter keeps its TensorImpl, so optimizers, modules and hooks still hold the same
    // tensor.
    adopt(parameter);
  }
  forget_changes();
  guard_gradients();
}

// Users and graphs may hold parameters after the engine is destroyed, so their storages must not
// refer to the owner any more.
ParameterBindings::~ParameterBindings() {
  for (torch_compat::BoundStorage& storage : storages_) storage.forget_owner();
}

std::string ParameterBindings::name(int parameter) const {
  return fmt::format("'{}' of {}", layout_.parameters()[parameter].fqn, unit_);
}

void ParameterBindings::adopt(int parameter) const {
  const ParameterSpec& spec = layout_.parameters()[parameter];
  storages_[parameter].adopt(tensors_[parameter], spec.dtype, spec.shape, spec.strides);
}

void ParameterBindings::bind(std::span<std::byte* const> segments) {
  for (size_t i = 0; i < storages_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const int64_t offset =
        layout_.place_of(parameter).offset * size_of(layout_.parameters()[i].dtype);
    storages_[i].bind(segments[layout_.segment_of(parameter)] + offset);
  }
  forget_changes();
}

void ParameterBindings::unbind() {
  for (torch_compat::BoundStorage& storage : storages_) storage.unbind();
}

// LibTorch's operators increase the version of a tensor that they write in place. Binding a
// parameter does not change its version.
bool ParameterBindings::has_changed(int parameter) const {
  return torch_compat::version(tensors_[parameter]) != versions_[parameter];
}

std::optional<int> ParameterBindings::first_changed() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (has_changed(static_cast<int>(i))) return static_cast<int>(i);
  }
  return std::nullopt;
}

void ParameterBindings::forget_changes() {
  for (size_t i = 0; i < tensors_.size(); ++i) versions_[i] = torch_compat::version(tensors_[i]);
}

std::optional<int> ParameterBindings::first_replaced() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!storages_[i].owns(tensors_[i])) return static_cast<int>(i);
  }
  return std::nullopt;
}

void ParameterBindings::adopt_replaced() {
  const at::NoGradGuard no_grad;
  const touch_trap::Unseen unseen;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (storages_[i].owns(tensors_[i])) continue;
    const ParameterSpec& spec = layout_.parameters()[i];
    const at::Tensor values = tensors_[i].detach();  // holds the replacing storage
    if (values.sizes() != at::IntArrayRef(spec.shape) ||
        values.scalar_type() != scalar_type_of(spec.dtype)) {
      throw StateError(
          {.what = fmt::format("parameter {} got another shape or type", name(static_cast<int>(i))),
           .hint = "load a model of the same architecture and param_dtype"});
    }
    adopt(static_cast<int>(i));
    tensors_[i].copy_(values);  // bumps the version, so that has_changed is true
  }
}

// Counts only parameters for which a guard was made. A parameter that was unfrozen later has no
// guard yet.
ParameterBindings::Guards ParameterBindings::guards() const {
  size_t there = 0, gone = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (guards_[i].defined()) ++(tensors_[i].grad().defined() ? there : gone);
  }
  if (gone == 0) return Guards::kThere;
  return there == 0 ? Guards::kGone : Guards::kSomeGone;
}

void ParameterBindings::guard_gradients() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].requires_grad()) continue;
    at::Tensor& gradient = tensors_[i].mutable_grad();
    if (gradient.defined()) {
      if (gradient.is_same(guards_[i])) continue;
      throw StateError(
          {.what = fmt::format("the program set the gradient of parameter {}",
                               name(static_cast<int>(i))),
           .cause = "gradients of sharded parameters are stored in shards",
           .hint =
               "set the gradient through `local.mutable_grad()` of Engine::sharded_parameters()"});
    }
    if (!guards_[i].defined()) {
      const ParameterSpec& spec = layout_.parameters()[i];
      // Each parameter has its own storage, because the message names the parameter. The guard
      // holds the storage.
      const torch_compat::BoundStorage nothing(
          spec.numel * size_of(spec.dtype), tensors_[i].device(),
          fmt::format("fsdp: the gradient of parameter {} cannot be read here: it is sharded; "
                      "hint: {}",
                      name(static_cast<int>(i)), kGradientHint));
      guards_[i] = nothing.view(spec.dtype, 0, spec.shape, spec.strides);
    }
    gradient = guards_[i];
  }
}

void ParameterBindings::set_reason(std::string_view reason, std::string_view hint) {
  for (size_t i = 0; i < storages_.size(); ++i) {
    const std::string text =
        fmt::format("{} {}; hint: {}", name(static_cast<int>(i)), reason, hint);
    storages_[i].set_message("fsdp: parameter " + text);
    storages_[i].forget_owner();  // operators then reach the storage, which throws its message
    tensors_[i].mutable_grad() = at::Tensor();
  }
}

}  // namespace fsdp
