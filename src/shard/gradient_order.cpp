#include "shard/gradient_order.h"

#include <algorithm>
#include <numeric>

namespace fsdp {

bool lies_like(const at::Tensor& gradient, const ParameterSpec& spec) {
  for (size_t dim = 0; dim < spec.shape.size(); ++dim) {
    // The stride of a dimension of size 1 has no effect, so it may differ.
    if (spec.shape[dim] != 1 && gradient.stride(static_cast<int64_t>(dim)) != spec.strides[dim]) {
      return false;
    }
  }
  return true;
}

std::vector<int64_t> memory_order(const ParameterSpec& spec) {
  std::vector<int64_t> order(spec.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return spec.strides[a] > spec.strides[b]; });
  return order;
}

}  // namespace fsdp
