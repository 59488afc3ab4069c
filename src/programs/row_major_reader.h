// Reads a tensor of a checkpoint in row-major order, with bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "io/checkpoint_tensors.h"

namespace fsdp {

// A part of a checkpoint's tensor. Its element at index (0, …, 0) is the first of the tensor.
struct TensorView {
  int64_t index = 0;  // of the tensor in the manifest
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements

  int64_t numel() const;
};

// Calls `take` with consecutive pieces of the elements in row-major order. The bytes are valid, and
// aligned to 8, during the call. The blocks are checked first.
// Memory: a piece has at most 8 MiB. If the tensor's memory order is not row-major, a piece has at
// most 64 MiB, and the tensor is read once for each piece, without the parts that are far from the
// piece's elements.
// Errors: those of CheckpointTensors::read.
void read_row_major(CheckpointTensors& from, const TensorView& view,
                    const std::function<void(std::span<const std::byte> piece)>& take);

}  // namespace fsdp
