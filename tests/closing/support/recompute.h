// A re-entrant checkpoint: the segment's forward keeps only its inputs and runs again in backward.
#pragma once

#include <functional>
#include <vector>

#include "support/torch_doctest.h"

namespace fsdp::testing {

using Tensors = std::vector<at::Tensor>;
using SegmentForward = std::function<Tensors(Tensors)>;

// Runs `segment` on `inputs`; nothing is recomputed without grad mode.
Tensors recompute(SegmentForward segment, const Tensors& inputs);

}  // namespace fsdp::testing
