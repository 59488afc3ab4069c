// The PTX in what nvcc's objects register with the CUDA runtime.
#pragma once

#include <string>
#include <vector>

namespace fsdp::testing::sim {

// The texts of the PTX modules of a fat binary. `wrapper` is what __cudaRegisterFatBinary was given.
// The layout is not documented: seen in the output of nvcc 13.0, and refused where it is another.
// Errors: ptx::Objection if it is no fat binary, if its PTX is compressed, or if it has none.
std::vector<std::string> ptx_of(const void* wrapper);

}  // namespace fsdp::testing::sim
