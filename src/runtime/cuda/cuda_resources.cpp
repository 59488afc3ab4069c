#include "runtime/cuda/cuda_resources.h"

#include <cuda.h>

namespace fsdp {

// The query uses the driver's interface, because a call of the runtime would create the context.
bool has_cuda_context(int ordinal) noexcept {
  constexpr char kQuestion[] = "cuDevicePrimaryCtxGetState";
  constexpr unsigned kVersion = 12000;  // version of the driver interface
  void* function = nullptr;
  const cudaError_t found =
      cudaGetDriverEntryPointByVersion(kQuestion, &function, kVersion, cudaEnableDefault, nullptr);
  forget_cuda(found);
  // If the driver cannot answer, the result is true. CudaScope then restores the former device, as
  // it usually does.
  if (found != cudaSuccess || function == nullptr) return true;
  const auto ask = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function);
  unsigned flags = 0;
  int is_active = 0;
  return ask(ordinal, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

}  // namespace fsdp
