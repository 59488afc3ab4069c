// Describes elements that are not contiguous: the source of a copy that packs them.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/dtype.h"

namespace fsdp::kernels {

inline constexpr int kMaxDims = 8;

// A strided source. `sizes` and `strides` (in elements; 0 and negative are legal) are those of the
// first `dims` dimensions, in the order in which the destination stores them, slowest first.
// dims = 0 is a single element.
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
