// The CUDA runtime's functions for devices and errors.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/cuda/fat_binary.h"
#include "simulator/cuda/simulation.h"

using namespace fsdp::testing::sim;

namespace {

constexpr int kVersion = CUDART_VERSION;

struct ErrorName {
  cudaError_t code;
  const char* name;
  const char* text;
};

// The errors that the simulation returns or that tests inject.
constexpr ErrorName kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction",
     "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch",
     "system has unsupported display driver / cuda driver combination"},
    {cudaErrorCompatNotSupportedOnDevice, "cudaErrorCompatNotSupportedOnDevice",
     "forward compatibility was attempted on non supported HW"},
    {cudaErrorContained, "cudaErrorContained",
     "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorName& name_of(cudaError_t code) {
  for (const ErrorName& each : kErrors) {
    if (each.code == code) return each;
  }
  static constexpr ErrorName kOther = {cudaErrorUnknown, "cudaErrorOfNoNameHere",
                                       "an error without a text in the simulated runtime"};
  return kOther;
}

// Implements the driver's cuDevicePrimaryCtxGetState; 3 is CUDA_ERROR_NOT_INITIALIZED.
int state_of_context(int ordinal, unsigned* flags, int* active) {
  const std::lock_guard lock(runtime_mutex());
  const Simulation* const simulation = current_simulation();
  if (simulation == nullptr) return 3;
  *flags = 0;
  *active = simulation->contexts().contains(ordinal) ? 1 : 0;
  return 0;
}

// Counts the call only by its name. The call reports errors, so the fault script does not apply to
// it.
cudaError_t last_error(const char* name, bool forget) {
  const std::lock_guard lock(runtime_mutex());
  Simulation* const simulation = current_simulation();
  if (simulation == nullptr) return cudaErrorNoDevice;
  simulation->faults().count(name);
  return simulation->last_error(forget);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](Simulation& simulation) {
    *count = simulation.options().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int ordinal) {
  return call("cudaSetDevice", [&](Simulation& simulation) {
    const auto& options = simulation.options();
    // The spare device can be chosen, but cudaGetDeviceCount does not report it.
    const int last = options.devices - (options.spare_default ? 0 : 1);
    if (ordinal < 0 || ordinal > last) return cudaErrorInvalidDevice;
    simulation.host().device = ordinal;
    simulation.need_context("cudaSetDevice");
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* status) {
  return call("cudaGetDriverEntryPointByVersion", [&](Simulation&) {
    const bool is_known = std::string_view(symbol) == "cuDevicePrimaryCtxGetState";
    *function = is_known ? reinterpret_cast<void*>(&state_of_context) : nullptr;
    if (status != nullptr) {
      *status = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* ordinal) {
  return call("cudaGetDevice", [&](Simulation& simulation) {
    *ordinal = simulation.host().device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](Simulation& simulation) {
    simulation.host_waits_for_device(simulation.host().device, "cudaDeviceSynchronize");
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceReset() {
  return call("cudaDeviceReset", [&](Simulation& simulation) -> cudaError_t {
    const std::vector<std::string> left = simulation.left();
    if (!left.empty()) throw Refusal(cudaErrorInvalidValue, "a reset that would end " + left[0]);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  return call("cudaDeviceGetAttribute", [&](Simulation& simulation) {
    if (ordinal < 0 || ordinal >= simulation.options().devices) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = simulation.options().multiprocessors;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = kArchitecture / 10;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = kArchitecture % 10;
        return cudaSuccess;
      case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        return cudaSuccess;
      case cudaDevAttrMaxGridDimX:
        *value = 0x7fffffff;
        return cudaSuccess;
      case cudaDevAttrComputeMode:
        *value = cudaComputeModeDefault;
        return cudaSuccess;
      default:
        throw Refusal(cudaErrorInvalidValue,
                      fmt::format("attribute {}, which is not simulated; add it to {}",
                                  static_cast<int>(attribute), __FILE__));
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int ordinal) {
  return call("cudaDeviceGetPCIBusId", [&](Simulation& simulation) {
    if (ordinal < 0 || ordinal >= simulation.options().devices) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", ordinal + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return call("cudaGetDeviceProperties", [&](Simulation& simulation) {
    if (ordinal < 0 || ordinal >= simulation.options().devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "simulated GPU");
    properties->major = kArchitecture / 10;
    properties->minor = kArchitecture % 10;
    std::snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "simulated %d", ordinal);
    properties->totalGlobalMem = static_cast<size_t>(simulation.memory().bytes_each());
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  return call("cudaDeviceCanAccessPeer", [&](Simulation& simulation) {
    const int devices = simulation.options().devices;
    if (std::min(ordinal, peer) < 0 || std::max(ordinal, peer) >= devices) {
      return cudaErrorInvalidDevice;
    }
    *can = ordinal != peer ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return call("cudaRuntimeGetVersion", [&](Simulation&) {
    *version = kVersion;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", [&](Simulation&) {
    *version = kVersion;
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() { return last_error("cudaGetLastError", true); }
cudaError_t cudaPeekAtLastError() { return last_error("cudaPeekAtLastError", false); }
const char* cudaGetErrorName(cudaError_t code) { return name_of(code).name; }
const char* cudaGetErrorString(cudaError_t code) { return name_of(code).text; }

}  // extern "C"
