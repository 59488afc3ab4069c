#include "engine/storage_holders.h"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "fsdp/error.h"

namespace fsdp {
namespace {

// The tensors that a module tree registers on one storage.
struct Holders {
  std::unordered_set<const c10::TensorImpl*> parameters;
  std::unordered_map<const c10::TensorImpl*, std::pair<at::TensorBase, size_t>>
      bases;           // with the number of their registered views
  std::string buffer;  // FQN of a buffer on this storage

  // Returns how many tensors are allowed to hold the storage. The base of a registered view is
  // counted too, if only registered views and this table refer to the base.
  size_t expected() const {
    size_t count = parameters.size();
    for (const auto& [key, base] : bases) {
      const bool only_views = base.first.use_count() == base.second + 1;
      if (only_views && !parameters.contains(key)) ++count;
    }
    return count;
  }
};
using HoldersOf = std::unordered_map<const c10::StorageImpl*, Holders>;

const c10::StorageImpl* storage_of(const at::TensorBase& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// A walk over a module tree that groups its parameters and buffers by storage.
class Collect {
 public:
  HoldersOf run(torch::nn::Module& root) {
    visit(root, "");
    return std::move(holders_);
  }

 private:
  void visit(torch::nn::Module& module, const std::string& prefix) {
    if (!seen_.insert(&module).second) return;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) add(item.value());
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      if (storage_of(item.value()) == nullptr) continue;
      holders_[storage_of(item.value())].buffer = prefix + item.key();
    }
    for (const auto& child : module.named_children()) {
      visit(*child.value(), prefix + child.key() + ".");
    }
  }

  void add(const at::Tensor& parameter) {
    if (storage_of(parameter) == nullptr) return;
    Holders& holders = holders_[storage_of(parameter)];
    if (!holders.parameters.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (!parameter.is_view()) return;
    const at::TensorBase& base = parameter._base();
    // If set_data (used by clone()) has replaced the view's storage, the base no longer holds it.
    if (storage_of(base) != storage_of(parameter)) return;
    auto& known = holders.bases[base.unsafeGetTensorImpl()];
    if (!known.first.defined()) known.first = base;
    ++known.second;
  }

  std::unordered_set<const torch::nn::Module*> seen_;
  HoldersOf holders_;
};

}  // namespace

void check_holders(torch::nn::Module& module, const std::vector<FoundParameter>& parameters) {
  const HoldersOf holders = Collect().run(module);
  for (const FoundParameter& found : parameters) {
    if (found.tensor.numel() == 0) continue;
    const Holders& here = holders.at(storage_of(found.tensor));
    if (!here.buffer.empty()) {
      throw InvalidArgument(
          {.what =
               fmt::format("buffer '{}' shares memory with parameter '{}'", here.buffer, found.fqn),
           .cause = "the buffer would keep the initial values when the parameter is sharded",
           .hint = "give the buffer memory of its own (clone()), or compute it in forward"});
    }
    // Each tensor adds one reference to the storage. Modules, ties and optimizers share a
    // TensorImpl and add no reference.
    const size_t holding = found.tensor.storage().use_count();
    if (holding <= here.expected()) continue;
    const size_t others = holding - here.expected();
    throw InvalidArgument(
        {.what = fmt::format("parameter '{}' cannot be sharded: its memory is held by {} other "
                             "tensor{}",
                             found.fqn, others, others == 1 ? "" : "s"),
         .cause = "the other tensors would keep the initial values; they can be views, detach() or "
                  "data() of the parameter, the archive that it was loaded from, or the graph of "
                  "an earlier forward",
         .hint = "destroy these tensors before the parameter is sharded, or keep a clone() of "
                 "the parameter instead"});
  }
}

}  // namespace fsdp
