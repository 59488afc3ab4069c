// A function that runs a segment of a program in fsdp::recompute.
#pragma once

#include <fsdp/recompute.h>

#include <functional>
#include <utility>
#include <vector>

#include "support/torch_doctest.h"

namespace fsdp::testing {

using Tensors = std::vector<at::Tensor>;
using SegmentForward = std::function<Tensors(Tensors)>;

inline Tensors recompute(SegmentForward segment, const Tensors& inputs) {
  return fsdp::recompute(std::move(segment), inputs);
}

}  // namespace fsdp::testing
