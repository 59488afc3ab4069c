// Finds the PTX in the binaries that nvcc's objects register with the CUDA runtime.
#pragma once

#include <string>

namespace fsdp::testing::sim {

// The compute capability of simulated GPUs: 8.0.
inline constexpr int kArchitecture = 80;

// Returns the PTX of a fat binary that a GPU of this architecture uses: the newest PTX that is not
// newer than the GPU. `wrapper` is the argument of __cudaRegisterFatBinary. The layout is not
// documented. It was determined from the output of nvcc 13.0, and any other layout is refused.
// Errors: ptx::Objection if `wrapper` is not a fat binary, if the PTX is compressed, or if no PTX
// fits.
std::string ptx_of(const void* wrapper);

}  // namespace fsdp::testing::sim
