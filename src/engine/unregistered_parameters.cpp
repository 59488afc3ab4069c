#include "engine/unregistered_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "engine/sharded_model.h"
#include "fsdp/error.h"

namespace fsdp {

void UnregisteredParameters::collect(const std::vector<at::Tensor>& leaves,
                                     const std::vector<at::Tensor>& inputs,
                                     const std::vector<const ShardedModel*>& models) {
  // These leaves are expected: the caller's inputs, the models' parameters, and ignored parameters.
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& input : inputs) known.insert(input.unsafeGetTensorImpl());
  for (const ShardedModel* model : models) {
    for (const auto& unit : model->units) {
      for (const at::Tensor& each : unit->shard->tensors()) {
        known.insert(each.unsafeGetTensorImpl());
      }
    }
    if (!model->options.ignore) continue;
    for (const auto& item : model->root->named_parameters()) {
      if (model->options.ignore(item.key())) known.insert(item.value().unsafeGetTensorImpl());
    }
  }
  for (const at::Tensor& leaf : leaves) {
    const c10::TensorImpl* impl = leaf.unsafeGetTensorImpl();
    if (known.contains(impl)) continue;
    const bool listed = std::any_of(
        suspects_.begin(), suspects_.end(),
        [&](const Suspect& suspect) { return suspect.tensor._unsafe_get_target() == impl; });
    if (listed) continue;
    suspects_.push_back({.tensor = WeakTensor(leaf.getIntrusivePtr()),
                         .shape = fmt::format("[{}]", fmt::join(leaf.sizes().vec(), ", "))});
  }
}

std::vector<UnregisteredParameters::Stray> UnregisteredParameters::judge() {
  done_ = true;
  std::vector<Stray> unregistered;
  for (const Suspect& suspect : suspects_) {
    // The graph holds one reference. Any other reference belongs to a holder outside the graph.
    if (suspect.tensor.use_count() <= 1) continue;
    unregistered.push_back({.tensor = suspect.tensor._unsafe_get_target(), .shape = suspect.shape});
  }
  suspects_.clear();
  return unregistered;
}

void UnregisteredParameters::refuse(const torch::nn::Module& root) {
  const std::vector<Stray> found = judge();
  if (found.empty()) return;
  std::string name = fmt::format("a tensor of shape {}", found[0].shape);
  for (const auto& item : root.named_parameters()) {
    // The tensor has an FQN only if it was registered after the engine had searched the model.
    if (item.value().unsafeGetTensorImpl() != found[0].tensor) continue;
    name = fmt::format("parameter '{}', registered after the engine was made", item.key());
  }
  throw StateError(
      {.what =
           fmt::format("{} requires a gradient and was used in the forward, but the engine does "
                       "not know it",
                       name),
       .where = found.size() > 1 ? fmt::format("the first of {} such tensors", found.size())
                                 : std::string(),
       .cause = "each rank would train it separately, or not at all",
       .hint = "register it (register_module, register_parameter) before the engine is "
               "constructed, or list it in Options::ignore; if it is not a parameter of the model, "
               "pass it as an argument of forward"});
}

}  // namespace fsdp
