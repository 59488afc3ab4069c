// check_cuda and forget_cuda: throw or clear errors of CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace fsdp {

// Throws unless `code` is cudaSuccess. `operation` names the call and its sizes.
// Errors: DeviceError "cudaMalloc failed: out of memory (cudaErrorMemoryAllocation)"; its subclass
//   OutOfMemory if memory is short.
void check_cuda(cudaError_t code, std::string_view operation);

// Clears the error of a release call in a destructor, which cannot throw. Otherwise CUDA would
// report it at the next launch.
inline void forget_cuda(cudaError_t code) noexcept {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace fsdp
