#include "checkpoint/engine_object.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "checkpoint/loaded_buffers.h"
#include "checkpoint/unit_parts.h"
#include "fsdp/error.h"
#include "io/block_sums.h"

namespace fsdp {
namespace {

using Names = std::map<const c10::TensorImpl*, std::vector<std::string>>;

// Returns all names under which the module has each parameter. A tied parameter has several.
Names names_of_parameters(const torch::nn::Module& root) {
  Names names;
  for (const auto& item : root.named_parameters()) {
    if (item.value().defined()) names[item.value().unsafeGetTensorImpl()].push_back(item.key());
  }
  return names;
}

int64_t hash_of_tensor(const at::Tensor& host) {
  const Hash128 hash =
      hash_of({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  int64_t first_half = 0;
  std::memcpy(&first_half, hash.bytes.data(), sizeof first_half);
  return first_half;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) {
    strides[d - 2] = strides[d - 1] * std::max<int64_t>(shape[d - 1], 1);
  }
  return strides;
}

}  // namespace

EngineObject::EngineObject(std::string name, EngineParts& engine)
    : StateObject(std::move(name), RestoreOrder::kEngine), engine_(engine) {}

void EngineObject::prepare() { engine_.require_between_passes("a checkpoint"); }

void EngineObject::require_saveable() const {
  engine_.pass.require_not_gathered("a checkpoint");
  engine_.training->require_not_averaged("fsdp::save");
}

std::vector<EngineObject::Whole> EngineObject::whole_tensors() const {
  std::vector<Whole> found;
  torch::nn::Module& root = *engine_.model.root;
  for (LoadableBuffer& each : loadable_buffers(root)) {
    found.push_back({std::move(each.fqn), std::move(each.aliases), std::move(each.buffer), {}});
  }
  std::set<const c10::TensorImpl*> sharded;
  for (const auto& unit : engine_.model.units) {
    for (const at::Tensor& tensor : unit->shard->tensors()) {
      sharded.insert(tensor.unsafeGetTensorImpl());
    }
  }
  const Names names = names_of_parameters(root);
  for (const auto& item : root.named_parameters()) {
    if (!item.value().defined()) continue;
    if (!sharded.insert(item.value().unsafeGetTensorImpl()).second) continue;
    if (!stored_type(item.value().scalar_type())) continue;
    std::vector<std::string> others = names.at(item.value().unsafeGetTensorImpl());
    std::erase(others, item.key());
    found.push_back({item.key(), std::move(others), item.value(), {}});
  }
  return found;
}

void EngineObject::append_weights(std::vector<StatePart>& parts) const {
  const Names names = names_of_parameters(*engine_.model.root);
  visit_unit_parameters(engine_, [&](const UnitParameter& each) {
    const ShardUnit& shard = *each.unit.shard;
    float* slice = shard.main().data(shard.layout().segment_of(each.parameter));
    StatePart part = part_of(engine_, each, fmt::format("{}/weight/{}", name, each.spec.fqn),
                             slice + each.local.offset);
    part.has_other_writers = shard.main_has_other_writers();
    const auto found = names.find(shard.tensors()[each.parameter].unsafeGetTensorImpl());
    if (found != names.end()) part.other_names = found->second;
    std::erase(part.other_names, each.spec.fqn);
    for (std::string& other : part.other_names) other = fmt::format("{}/weight/{}", name, other);
    parts.push_back(std::move(part));
  });
}

StatePart EngineObject::part_of_whole(const Whole& whole, int64_t rows) const {
  const Mesh& mesh = engine_.context->mesh;
  const int64_t numel = whole.host.numel();
  const std::string prefix = fmt::format("{}/buffer{}/", name, rows > 0 ? "_by_rank" : "");
  StatePart part{.name = prefix + whole.fqn,
                 .other_names = whole.other_names,
                 .dtype = *stored_type(whole.host.scalar_type()),
                 .shape = whole.host.sizes().vec(),
                 .strides = {},
                 .numel = numel,
                 .data = static_cast<std::byte*>(whole.host.mutable_data_ptr())};
  for (std::string& other : part.other_names) other.insert(0, prefix);
  if (rows > 0) {
    part.shape.insert(part.shape.begin(), rows);
    part.granule = std::max<int64_t>(numel, 1);
    part.begin = mesh.rank() % rows * numel;
  } else {
    part.holder = mesh.rank();
    part.holders = mesh.world_size();
  }
  part.strides = contiguous_strides(part.shape);
  return part;
}

void EngineObject::append_parts(std::vector<StatePart>& parts) {
  const at::NoGradGuard no_grad;
  append_weights(parts);
  whole_ = whole_tensors();
  if (whole_.empty()) return;
  std::vector<int64_t> hashes;
  for (Whole& each : whole_) {
    each.host = each.tensor.detach().to(at::kCPU).contiguous();
    hashes.push_back(hash_of_tensor(each.host));
  }
  const Mesh& mesh = engine_.context->mesh;
  const std::vector<int64_t> all = mesh.gather(hashes, "hashes of the buffers");
  for (size_t i = 0; i < whole_.size(); ++i) {
    // All hashes are compared with rank 0's, so every rank gets the same result.
    bool equal = true;
    for (size_t at = i; at < all.size(); at += whole_.size()) equal &= all[at] == all[i];
    parts.push_back(part_of_whole(whole_[i], equal ? 0 : mesh.world_size()));
  }
}

void EngineObject::append_stored_parts(const CheckpointManifest& manifest,
                                       std::vector<StatePart>& parts) {
  const at::NoGradGuard no_grad;
  append_weights(parts);
  whole_ = whole_tensors();
  for (Whole& each : whole_) {
    each.host = at::empty_like(each.tensor.detach(), at::TensorOptions().device(at::kCPU),
                               at::MemoryFormat::Contiguous);
    const std::string by_rank = fmt::format("{}/buffer_by_rank/{}", name, each.fqn);
    const auto found = std::ranges::find(manifest.tensors, by_rank, &ManifestTensor::name);
    const bool has_rows = found != manifest.tensors.end() && !found->shape.empty();
    parts.push_back(part_of_whole(each, has_rows ? std::max<int64_t>(found->shape[0], 1) : 0));
  }
}

void EngineObject::restore(const CheckpointManifest& manifest, const ManifestObject& stored) {
  static_cast<void>(manifest), static_cast<void>(stored);
  const at::NoGradGuard no_grad;
  {
    const std::lock_guard lock(engine_.scheduler->mutex);
    for (const auto& unit : engine_.model.units) {
      unit->shard->mark_changed(/*copies_written=*/false);
    }
  }
  for (Whole& each : whole_) each.tensor.detach().copy_(each.host);
  whole_.clear();
}

}  // namespace fsdp
