#include "engine/stray_leaves.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fsdp {

void StrayLeaves::collect(const std::vector<at::Tensor>& leaves,
                          const std::unordered_set<const c10::TensorImpl*>& known) {
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

std::vector<StrayLeaves::Stray> StrayLeaves::judge() {
  done_ = true;
  std::vector<Stray> strays;
  for (const Suspect& suspect : suspects_) {
    // The graph's own reference is one.
    if (suspect.tensor.use_count() <= 1) continue;
    strays.push_back({.tensor = suspect.tensor._unsafe_get_target(), .shape = suspect.shape});
  }
  suspects_.clear();
  return strays;
}

}  // namespace fsdp
