#include "checkpoint/value_objects.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <utility>

#include "checkpoint/loaded_buffers.h"
#include "checkpoint/stored_values.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

std::map<std::string, double> doubles_of(const ManifestObject& stored) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : stored.values) numbers[name] = double_of(stored, name);
  return numbers;
}

std::vector<int64_t> contiguous_strides(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions().device(at::kMeta)).strides().vec();
}

}  // namespace

void StateObject::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                        std::vector<std::string>& notes) const {
  static_cast<void>(manifest), static_cast<void>(notes);
  if (stored.kind == kind()) return;
  refuse_object(stored, fmt::format("is of kind {}, expected {}", quoted_name(stored.kind), kind()),
                "construct the object that was saved, or load with weights_only");
}

// ---- schedulers ----

template <class Scheduler>
StateValues SchedulerObject<Scheduler>::values() const {
  StateValues values;
  for (const auto& [name, value] : scheduler_.state()) values[name] = value;
  return values;
}

template <class Scheduler>
void SchedulerObject<Scheduler>::check(const CheckpointManifest& manifest,
                                       const ManifestObject& stored,
                                       std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  for (const auto& [name, value] : scheduler_.state()) double_of(stored, name);
}

template <class Scheduler>
void SchedulerObject<Scheduler>::restore(const CheckpointManifest& manifest,
                                         const ManifestObject& stored) {
  static_cast<void>(manifest);
  // Loading a scheduler's state sets the optimizer's rate to the scheduler's last one. A program
  // may have changed the rate since, and the optimizer's own state has that rate. So the rate is
  // set back after the load.
  Optimizer& optimizer = TrainingPlaceAccess::optimizer(scheduler_);
  const double lr = optimizer.lr();
  scheduler_.load(doubles_of(stored));
  optimizer.set_lr(lr);
}

template class SchedulerObject<LRScheduler>;
template class SchedulerObject<ReduceLROnPlateau>;

// ---- loss scaler ----

StateValues ScalerObject::values() const {
  const LossScaler::State state = scaler_.state();
  return {{"scale", state.scale}, {"growth_tracker", state.growth_tracker}};
}

void ScalerObject::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                         std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  const double scale = double_of(stored, "scale");
  if (!std::isfinite(scale) || scale <= 0 || int64_of(stored, "growth_tracker") < 0) {
    refuse_object(stored, fmt::format("has a scale of {}", scale),
                  "resume from an earlier checkpoint");
  }
}

void ScalerObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(manifest);
  scaler_.load(
      {.scale = double_of(stored, "scale"), .growth_tracker = int64_of(stored, "growth_tracker")});
}

// ---- position in the data ----

StateValues CursorObject::values() const {
  const SampleCursor::Position position = cursor_.position(step_);
  const SamplerOptions& options = cursor_.sampler().options();
  return {{"epoch", position.epoch},
          {"samples", position.samples},
          {"sample_count", options.sample_count},
          {"shuffle", static_cast<int64_t>(options.shuffle)},
          {"drop_last", static_cast<int64_t>(options.drop_last)},
          {"seed", static_cast<int64_t>(options.seed)}};
}

void CursorObject::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                         std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  const SamplerOptions& options = cursor_.sampler().options();
  const auto require = [&](const char* name, int64_t expected) {
    const int64_t got = int64_of(stored, name);
    if (got == expected) return;
    refuse_object(stored, fmt::format("has a {} of {}, expected {}", name, got, expected),
                  "resume with the data set and the sampler of the saved run, or load with "
                  "weights_only");
  };
  require("sample_count", options.sample_count);
  require("shuffle", static_cast<int64_t>(options.shuffle));
  require("drop_last", static_cast<int64_t>(options.drop_last));
  require("seed", static_cast<int64_t>(options.seed));
  const int64_t samples = int64_of(stored, "samples");
  if (int64_of(stored, "epoch") < 0 || samples < 0 || samples >= options.sample_count) {
    refuse_object(stored, fmt::format("is at sample {} of {}", samples, options.sample_count),
                  "resume from an earlier checkpoint");
  }
}

void CursorObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  cursor_.restart(manifest.step,
                  {.epoch = int64_of(stored, "epoch"), .samples = int64_of(stored, "samples")});
}

// ---- values of the program ----

template <class Value>
std::string ValueObject<Value>::kind() const {
  if constexpr (std::is_same_v<Value, int64_t>) return "int64";
  if constexpr (std::is_same_v<Value, double>) return "double";
  return "text";
}

template <class Value>
void ValueObject<Value>::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                               std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  const auto value = stored.values.find("value");
  if (value != stored.values.end() && std::holds_alternative<Value>(value->second)) return;
  refuse_object(stored, "has no value", "resume from an earlier checkpoint");
}

template <class Value>
void ValueObject<Value>::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(manifest);
  value_ = std::get<Value>(stored.values.at("value"));
}

template class ValueObject<int64_t>;
template class ValueObject<double>;
template class ValueObject<std::string>;

StatePart TensorObject::part() const {
  return {.name = fmt::format("{}/tensor", name),
          .other_names = {},
          .dtype = stored_type(host_.scalar_type()).value(),
          .shape = host_.sizes().vec(),
          .strides = contiguous_strides(host_),
          .numel = host_.numel(),
          .data = static_cast<std::byte*>(host_.mutable_data_ptr())};
}

void TensorObject::append_parts(std::vector<StatePart>& parts) {
  host_ = tensor_.detach().to(at::kCPU).contiguous();
  parts.push_back(part());
  if (mesh_.rank() != 0) parts.back().numel = 0;
}

void TensorObject::append_stored_parts(const CheckpointManifest& manifest,
                                       std::vector<StatePart>& parts) {
  static_cast<void>(manifest);
  host_ = at::empty_like(tensor_.detach(), at::TensorOptions().device(at::kCPU),
                         at::MemoryFormat::Contiguous);
  parts.push_back(part());
}

void TensorObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(manifest), static_cast<void>(stored);
  const at::NoGradGuard no_grad;
  tensor_.detach().copy_(host_);
}

// ---- random states ----

namespace {
constexpr std::array kNames{"random/cpu", "random/cuda"};
}

std::vector<RandomObject::Row> RandomObject::rows_of_generators() const {
  std::vector<Row> rows{{at::detail::getDefaultCPUGenerator(), {}}};
  const at::Device device = engine_.context->streams.torch_device;
  if (device.is_cuda()) {
    rows.push_back({at::globalContext().defaultGenerator(device), {}});
  }
  for (Row& row : rows) {
    const std::lock_guard lock(row.generator.mutex());
    row.state = row.generator.get_state();
  }
  return rows;
}

void RandomObject::append_rows(int64_t world_size, std::vector<StatePart>& parts) {
  const int64_t rank = engine_.context->mesh.rank();
  rows_ = rows_of_generators();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int64_t bytes = rows_[i].state.numel();
    parts.push_back({.name = kNames[i],
                     .other_names = {},
                     .dtype = StoredDType::kU8,
                     .shape = {world_size, bytes},
                     .strides = {bytes, 1},
                     .granule = bytes,
                     .begin = rank * bytes,
                     .numel = bytes,
                     .data = static_cast<std::byte*>(rows_[i].state.mutable_data_ptr())});
  }
}

void RandomObject::append_parts(std::vector<StatePart>& parts) {
  append_rows(engine_.context->mesh.world_size(), parts);
}

void RandomObject::check(const CheckpointManifest& manifest, const ManifestObject& stored,
                         std::vector<std::string>& notes) const {
  StateObject::check(manifest, stored, notes);
  const int64_t ranks = engine_.context->mesh.world_size();
  if (ranks <= manifest.world_size) return;
  notes.push_back(fmt::format(
      "the checkpoint has random states of {} ranks: the other ranks were seeded with seed + rank "
      "+ 1000 · step",
      manifest.world_size));
}

void RandomObject::append_stored_parts(const CheckpointManifest& manifest,
                                       std::vector<StatePart>& parts) {
  std::vector<StatePart> rows;
  append_rows(manifest.world_size, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    // A checkpoint of a run on CPUs has no random states of GPUs. restore() then seeds these
    // generators.
    const auto found = std::ranges::find(manifest.tensors, rows[i].name, &ManifestTensor::name);
    if (found == manifest.tensors.end()) continue;
    rows_[i].is_stored = engine_.context->mesh.rank() < manifest.world_size;
    if (!rows_[i].is_stored) rows[i].begin = rows[i].numel = 0;
    parts.push_back(std::move(rows[i]));
  }
}

void RandomObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(stored);
  constexpr uint64_t kSeedsPerStep = 1000;
  const int rank = engine_.context->mesh.rank();
  for (Row& row : rows_) {
    const std::lock_guard lock(row.generator.mutex());
    if (row.is_stored) {
      row.generator.set_state(row.state);
    } else {
      row.generator.set_current_seed(static_cast<uint64_t>(engine_.model.options.seed) +
                                     static_cast<uint64_t>(rank) +
                                     kSeedsPerStep * static_cast<uint64_t>(manifest.step));
    }
  }
  rows_.clear();
}

}  // namespace fsdp
