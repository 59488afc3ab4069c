// Error texts that several tests of this layer compare.
#pragma once

namespace fsdp::testing {

// The error of a use of CUDA after LibTorch decided that there is none.
inline constexpr const char* kNoCuda =
    "LibTorch has no CUDA in this process; a call (such as torch::manual_seed) asked LibTorch for "
    "CUDA before its CUDA library was loaded, and LibTorch remembers that it had no CUDA; hint: "
    "make the mesh before any other call of LibTorch";

}  // namespace fsdp::testing
