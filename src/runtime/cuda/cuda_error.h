// From CUDA's error codes to DeviceError.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace fsdp {

// Errors: DeviceError "cudaMalloc failed: out of memory (cudaErrorMemoryAllocation)" unless `code`
//   is success; of memory, OutOfMemory. `operation` is what was tried, with its sizes.
void check_cuda(cudaError_t code, std::string_view operation);

// Of what gives back: nobody can be told, and CUDA would tell the next launch.
inline void forget_cuda(cudaError_t code) noexcept {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace fsdp
