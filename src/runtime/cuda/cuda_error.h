// check_cuda and forget_cuda: throw or clear errors of CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace fsdp {

// Throws unless `code` is cudaSuccess. `operation` names the call and its sizes.
// Errors: OutOfMemory (a subclass of DeviceError) if memory is short, otherwise DeviceError.
//   Example: "cudaMalloc failed: out of memory (cudaErrorMemoryAllocation)".
void check_cuda(cudaError_t code, std::string_view operation);

// Clears the error `code` of a call that frees a resource, for destructors, which cannot throw.
// If the error were not cleared, CUDA would report it at the next launch.
inline void forget_cuda(cudaError_t code) noexcept {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace fsdp
