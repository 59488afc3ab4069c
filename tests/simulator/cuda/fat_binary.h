// The PTX in what nvcc's objects register with the CUDA runtime.
#pragma once

#include <string>

namespace fsdp::testing::sim {

// What simulated GPUs are: the compute capability 8.0.
inline constexpr int kArchitecture = 80;

// The PTX of a fat binary that a GPU of this architecture would take: the newest that is not newer
// than it. `wrapper` is what __cudaRegisterFatBinary was given.
// The layout is not documented: seen in the output of nvcc 13.0, and refused where it is another.
// Errors: ptx::Objection if it is no fat binary, if that PTX is compressed, or if there is none.
std::string ptx_of(const void* wrapper);

}  // namespace fsdp::testing::sim
