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
      return "use more ranks, smaller units, a lower param_dtype, fewer prefetched units or a "
             "smaller batch";
    case cudaErrorUnsupportedPtxVersion:
      return "update the NVIDIA driver: it is older than this library's CUDA";
    case cudaErrorDevicesUnavailable:
      return "start one rank per GPU, or run nvidia-smi -c DEFAULT: another process uses the GPU "
             "exclusively (nvidia-smi shows it and the compute mode)";
    case cudaErrorSystemNotReady:
      return "start the fabric manager (systemctl start nvidia-fabricmanager) of the driver's "
             "exact version: the GPUs' NVSwitches are not set up";
    case cudaErrorSystemDriverMismatch:
      return "reboot, or reload the kernel module of the driver: its version differs from the "
             "driver's libraries";
    case cudaErrorCompatNotSupportedOnDevice:
      return "remove CUDA's compatibility libraries from LD_LIBRARY_PATH, or update the driver: "
             "they support only data-centre GPUs";
    // The errors from here on are sticky: every later CUDA call returns them again.
    case cudaErrorAssert:
      return "check labels and token ids: an assertion of an earlier kernel failed, in LibTorch "
             "usually for an index out of range; set CUDA_LAUNCH_BLOCKING=1 to see the kernel; "
             "this process cannot use the device any more";
    case cudaErrorContained:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return "see nvidia-smi -q and the system's log: the GPU itself failed; this process cannot "
             "use the device any more";
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
      return "set CUDA_LAUNCH_BLOCKING=1 to see the kernel: an earlier one failed; this process "
             "cannot use the device any more";
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
  // A lack of memory has its own class, because callers catch it to free memory and try again.
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory(std::move(text));
  throw DeviceError(std::move(text));
}

}  // namespace fsdp
