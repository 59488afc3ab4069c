// Launches kernels and loads their code.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/cuda/cuda_resources.h"
#include "runtime/cuda/cuda_stream.h"

namespace fsdp::kernels::cuda {

// Launches a kernel on `on`. CUDA copies the parameters before the call returns.
// Errors: DeviceError, which names the kernel.
template <class... Parameters>
void launch(Stream& on, std::string_view name, void (*kernel)(Parameters...), int64_t blocks,
            int threads, const Parameters&... parameters) {
  const CudaStream& stream = cuda_stream(on);
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  const CudaScope scope(stream.ordinal());
  check_cuda(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(threads)), pointers, 0, stream.handle()),
      "the launch of " + std::string(name));
}

// Loads a kernel onto the current device: queries the kernel's attributes, for which CUDA must load
// the kernel.
// Errors: DeviceError, which names the kernel.
template <class... Parameters>
void load(std::string_view name, void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
             "loading the kernel " + std::string(name));
}

// Throws InvalidArgument: the segment has more blocks than one launch allows.
[[noreturn]] void refuse_blocks(std::string_view kernel, int64_t blocks);

}  // namespace fsdp::kernels::cuda
