// Runs ranks of a test as threads on the fake CUDA.
#pragma once

#include <fsdp/mesh.h>

#include <vector>

#include "support/run_ranks.h"

namespace fsdp::testing {

// Returns meshes as Mesh::local does for a GPU. Only the name of the device is "cuda:0". Its
// memory, kernels and streams are the host's, so that it can use the tensors of the fake.
std::vector<Mesh> fake_cuda_ranks(int world);
// Returns options for run_ranks.
RunRanksOptions on_fake_cuda();

}  // namespace fsdp::testing
