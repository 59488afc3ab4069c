#include "runtime/cuda/cuda_resources.h"

#include <cuda.h>

namespace fsdp {

// The function queries the driver API, because a call of the runtime API would create the context.
bool has_cuda_context(int ordinal) noexcept {
  constexpr char kQuestion[] = "cuDevicePrimaryCtxGetState";
  constexpr unsigned kVersion = 12000;  // version of the driver interface
  void* function = nullptr;
  const cudaError_t found =
      cudaGetDriverEntryPointByVersion(kQuestion, &function, kVersion, cudaEnableDefault, nullptr);
  forget_cuda(found);
  // If the driver cannot answer, the result is true, so that CudaScope restores the former device,
  // as usual.
  if (found != cudaSuccess || function == nullptr) return true;
  const auto ask = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function);
  unsigned flags = 0;
  int is_active = 0;
  return ask(ordinal, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

}  // namespace fsdp
