#include "checkpoint/ema_object.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "checkpoint/stored_values.h"
#include "checkpoint/unit_parts.h"

namespace fsdp {

void EmaObject::prepare() {
  state_.engine.require_between_passes("a checkpoint");
  const std::lock_guard lock(state_.engine.scheduler->mutex);
  state_.follow_trained();
}

StateValues EmaObject::values() const {
  return {{"updates", state_.updates()},
          {"option/decay", state_.options.decay},
          {"option/warmup", static_cast<int64_t>(state_.options.warmup ? 1 : 0)}};
}

void EmaObject::append_averages(std::vector<StatePart>& parts) const {
  visit_unit_parameters(state_.engine, [&](const UnitParameter& each) {
    const int segment = each.unit.shard->layout().segment_of(each.parameter);
    float* const average = state_.average_of(each.unit.index, segment);
    if (average == nullptr) return;  // frozen
    parts.push_back(part_of(state_.engine, each, fmt::format("{}/average/{}", name, each.spec.fqn),
                            average + each.local.offset));
  });
}

// Returns this rank's row of the average of a buffer. Another number of ranks may have written the
// rows.
StatePart EmaObject::part_of_buffer(size_t buffer, int64_t rows) const {
  const at::Tensor& host = host_[buffer];
  const int64_t numel = host.numel();
  StatePart part{.name = fmt::format("{}/buffer_by_rank/{}", name, state_.buffers[buffer].fqn),
                 .other_names = {},
                 .shape = host.sizes().vec(),
                 .strides = host.strides().vec(),
                 .granule = std::max<int64_t>(numel, 1),
                 .begin = state_.engine.context->mesh.rank() % rows * numel,
                 .numel = numel,
                 .data = static_cast<std::byte*>(host.mutable_data_ptr())};
  part.shape.insert(part.shape.begin(), rows);
  part.strides.insert(part.strides.begin(), std::max<int64_t>(numel, 1));
  return part;
}

void EmaObject::append_parts(std::vector<StatePart>& parts) {
  const at::NoGradGuard no_grad;
  append_averages(parts);
  host_.clear();
  if (!state_.buffers.empty()) state_.engine.context->main->stream().synchronize();
  for (size_t i = 0; i < state_.buffers.size(); ++i) {
    host_.push_back(state_.buffers[i].average.to(at::kCPU).contiguous());
    parts.push_back(part_of_buffer(i, state_.engine.context->mesh.world_size()));
  }
}

void EmaObject::append_stored_parts(const CheckpointManifest& manifest,
                                    std::vector<StatePart>& parts) {
  append_averages(parts);
  host_.clear();
  for (size_t i = 0; i < state_.buffers.size(); ++i) {
    host_.push_back(
        at::empty_like(state_.buffers[i].average, at::TensorOptions().device(at::kCPU)));
    const auto stored = std::ranges::find(
        manifest.tensors, fmt::format("{}/buffer_by_rank/{}", name, state_.buffers[i].fqn),
        &ManifestTensor::name);
    const bool has_rows = stored != manifest.tensors.end() && !stored->shape.empty();
    parts.push_back(part_of_buffer(i, has_rows ? std::max<int64_t>(stored->shape[0], 1)
                                               : state_.engine.context->mesh.world_size()));
  }
}

void EmaObject::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                      std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  if (int64_of(stored, "updates") < 0) refuse_object(stored, "has negative updates", {});
  const double decay = double_of(stored, "option/decay");
  if (decay != state_.options.decay) {
    notes.push_back(
        fmt::format("{}: decay is {}; the checkpoint has {}", name, state_.options.decay, decay));
  }
}

void EmaObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(manifest);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < host_.size(); ++i) state_.buffers[i].average.copy_(host_[i]);
  host_.clear();
  state_.set_updates(int64_of(stored, "updates"));
}

}  // namespace fsdp
