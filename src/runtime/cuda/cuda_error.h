// From CUDA's error codes to DeviceError.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace fsdp {

// Errors: DeviceError "cudaMalloc failed: out of memory (cudaErrorMemoryAllocation)" unless `code`
//   is success. `operation` is what was tried, with its sizes.
void check_cuda(cudaError_t code, std::string_view operation);

}  // namespace fsdp
