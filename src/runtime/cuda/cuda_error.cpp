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
    case cudaErrorUnsupportedPtxVersion:
      return "the NVIDIA driver is older than this library's CUDA: update it";
    case cudaErrorDevicesUnavailable:
      return "another process has the GPU for itself: nvidia-smi shows which, and the compute "
             "mode; "
             "one rank a GPU, or nvidia-smi -c DEFAULT";
    case cudaErrorSystemNotReady:
      return "the GPUs' NVSwitches are not set up: start the fabric manager "
             "(systemctl start nvidia-fabricmanager), of the driver's very version";
    case cudaErrorSystemDriverMismatch:
      return "the loaded kernel module and the driver's libraries have different versions: reboot, "
             "or reload the module";
    case cudaErrorCompatNotSupportedOnDevice:
      return "CUDA's compatibility libraries serve data-centre GPUs alone: take them out of "
             "LD_LIBRARY_PATH, or update the driver";
    // The errors from here on are sticky: every later CUDA call returns them again.
    case cudaErrorAssert:
      return "a check of an earlier kernel failed, in LibTorch as a rule one of an index out of "
             "range: look at labels and token ids; CUDA_LAUNCH_BLOCKING=1 names the kernel; the "
             "device cannot be used any more by this process";
    case cudaErrorContained:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return "the GPU itself failed: nvidia-smi -q and the system's log say more; the device "
             "cannot be used any more by this process";
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
      return "an earlier kernel did it; CUDA_LAUNCH_BLOCKING=1 names it; the device cannot be used "
             "any more by this process";
    default:
      return {};
  }
}

}  // namespace

void check_cuda(cudaError_t code, std::string_view operation) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears this error unless it is sticky
  ErrorText text{.what = fmt::format("{} failed: {} ({})", operation, cudaGetErrorString(code),
                                     cudaGetErrorName(code)),
                 .hint = std::string(hint_for(code))};
  // Callers catch OutOfMemory to free memory and try again.
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory(std::move(text));
  throw DeviceError(std::move(text));
}

}  // namespace fsdp
