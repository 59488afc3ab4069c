#include "runtime/cuda/cuda_error.h"

#include <fmt/format.h>

#include <utility>

#include "fsdp/error.h"
#include "runtime/out_of_memory.h"

namespace fsdp {
namespace {

std::string_view hint_for(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return "use more ranks, smaller units or a lower param_dtype; fewer prefetched units; a "
             "smaller batch";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
      return "the device cannot be used any more by this process; CUDA_LAUNCH_BLOCKING=1 names the "
             "kernel";
    default:
      return {};
  }
}

}  // namespace

void check_cuda(cudaError_t code, std::string_view operation) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // what is not sticky is forgotten: it was told
  ErrorText text{.what = fmt::format("{} failed: {} ({})", operation, cudaGetErrorString(code),
                                     cudaGetErrorName(code)),
                 .hint = std::string(hint_for(code))};
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory(std::move(text));
  throw DeviceError(std::move(text));
}

}  // namespace fsdp
