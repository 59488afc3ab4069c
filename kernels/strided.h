// Describes elements that are not contiguous, as the source of a copy that packs them.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/dtype.h"

namespace fsdp::kernels {

inline constexpr int kMaxDims = 8;

// A strided source with `dims` dimensions. The first `dims` elements of `sizes` and `strides`
// describe them, slowest first, in the order in which the destination stores them. Strides are in
// elements and may be 0 or negative. If dims is 0, the source is a single element.
struct StridedSource {
  const void* data = nullptr;  // the element at index (0, …, 0)
  DType dtype = DType::kFloat32;
  int dims = 0;
  std::array<int64_t, kMaxDims> sizes{};
  std::array<int64_t, kMaxDims> strides{};

  int64_t numel() const {
    int64_t numel = 1;
    for (int dim = 0; dim < dims; ++dim) numel *= sizes[dim];
    return numel;
  }
};

}  // namespace fsdp::kernels
