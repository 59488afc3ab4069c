// Ranks of a test as threads on the fake CUDA.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

#include "support/run_ranks.h"

namespace fsdp::testing {

// As Mesh::local with a GPU. The device is LibTorch's "cuda:0" in name; its memory, its kernels and
// its streams are the host's, so that tensors of the fake may lie in it.
std::vector<Mesh> fake_cuda_ranks(int world);
// For run_ranks.
RunRanksOptions on_fake_cuda();

}  // namespace fsdp::testing
