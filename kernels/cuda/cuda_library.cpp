#include "runtime/cuda/cuda_library.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fsdp/error.h"
#include "fsdp_cuda_build.h"
#include "kernels/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_resources.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

constexpr int kLeastMajor = 8;  // the oldest compute capability for which kernels are compiled

std::string cuda_version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

// Returns the reason for cudaErrorInsufficientDriver. CUDA reports this error also if there is no
// driver.
std::string why_driver_is_refused() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver runs on this machine (cudaErrorInsufficientDriver)";
  }
  return fmt::format("the NVIDIA driver supports CUDA {}, expected CUDA {} or newer",
                     cuda_version(driver), CUDART_VERSION / 1000);
}

// Returns the reason why cudaGetDeviceCount found no GPU. cudaSuccess means that it reported 0
// GPUs.
std::string why_no_device(cudaError_t code) {
  switch (code) {
    case cudaErrorInsufficientDriver:
      return why_driver_is_refused();
    case cudaSuccess:
    case cudaErrorNoDevice:
      return "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide it)";
    default:
      return fmt::format("cudaGetDeviceCount failed: {} ({})", cudaGetErrorString(code),
                         cudaGetErrorName(code));
  }
}

// Returns the number of GPUs that this process can use. If it is 0, sets `why_none`.
int device_count(std::string& why_none) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  why_none.clear();
  if (code == cudaSuccess && count > 0) return count;
  // The caller gets the reason as text. If the error were not cleared, CUDA would report it at the
  // next launch.
  static_cast<void>(cudaGetLastError());
  why_none = why_no_device(code);
  return 0;
}

int attribute_of(int ordinal, cudaDeviceAttr which) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, ordinal), "cudaDeviceGetAttribute");
  return value;
}

void refuse_old(int ordinal) {
  const int major = attribute_of(ordinal, cudaDevAttrComputeCapabilityMajor);
  if (major >= kLeastMajor) return;
  throw DeviceError(
      {.what = fmt::format("cuda:{} has compute capability {}.{}, expected {}.0 or newer", ordinal,
                           major, attribute_of(ordinal, cudaDevAttrComputeCapabilityMinor),
                           kLeastMajor),
       .hint =
           "use a GPU of the Ampere generation or newer (choose it with CUDA_VISIBLE_DEVICES)"});
}

// Opens a device and loads all kernels. Without this, CUDA would load each kernel at its first
// launch. Such a load can block until work on the device ends, such as a collective whose peers
// wait for this rank.
std::unique_ptr<Device> open_device(int ordinal) {
  std::string why_none;
  const int count = device_count(why_none);
  if (ordinal < 0 || ordinal >= count) {
    throw DeviceError({.what = fmt::format("there is no cuda:{}", ordinal),
                       .cause = count == 0 ? why_none
                                           : fmt::format("GPUs of this process are cuda:0 to "
                                                         "cuda:{}",
                                                         count - 1),
                       .hint = "start at most one rank per GPU, or use the CPU"});
  }
  return with_place([&] { return fmt::format("opening cuda:{}", ordinal); },
                    [&] {
                      refuse_old(ordinal);
                      const CudaScope scope(ordinal);
                      kernels::cuda::load_kernels();
                      return std::make_unique<CudaDevice>(ordinal, kernels::cuda::kernel_table());
                    });
}

std::string device_bus(int ordinal) {
  std::array<char, 32> bus{};
  check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal),
             "cudaDeviceGetPCIBusId");
  return bus.data();
}

CudaVersions versions() {
  CudaVersions found;
  check_cuda(cudaDriverGetVersion(&found.driver), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&found.runtime), "cudaRuntimeGetVersion");
  return found;
}

CudaDeviceFacts::Mode mode_of(int ordinal) {
  switch (attribute_of(ordinal, cudaDevAttrComputeMode)) {
    case cudaComputeModeProhibited:
      return CudaDeviceFacts::Mode::kProhibited;
    case cudaComputeModeDefault:
      return CudaDeviceFacts::Mode::kShared;
    default:
      return CudaDeviceFacts::Mode::kOneProcess;
  }
}

// Returns "GPU-" and the bytes, with the usual hyphens of a UUID. Returns an empty string if the
// driver reports no UUID.
std::string text_of(const cudaUUID_t& uuid) {
  if (std::ranges::all_of(uuid.bytes, [](char byte) { return byte == 0; })) return {};
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

CudaDeviceFacts device_facts(int ordinal) {
  cudaDeviceProp found{};
  check_cuda(cudaGetDeviceProperties(&found, ordinal), "cudaGetDeviceProperties");
  return {.name = found.name,
          .uuid = text_of(found.uuid),
          .major = found.major,
          .minor = found.minor,
          .memory_bytes = static_cast<int64_t>(found.totalGlobalMem),
          .mode = mode_of(ordinal)};
}

// The scope makes `ordinal` the thread's current device, because cudaMemGetInfo reports the current
// device.
int64_t device_free_bytes(int ordinal) {
  const CudaScope scope(ordinal);
  size_t left = 0, total = 0;
  check_cuda(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(left);
}

// Destroys this process's context on the device, which frees the memory of the context.
void leave_device(int ordinal) {
  const CudaScope scope(ordinal);
  check_cuda(cudaDeviceReset(), "cudaDeviceReset");
}

bool reaches(int from, int to) {
  int can = 0;
  check_cuda(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
  return can != 0;
}

constexpr CudaLibrary kLibrary{.build = kFsdpCudaBuild,
                               .device_count = &device_count,
                               .open_device = &open_device,
                               .device_bus = &device_bus,
                               .versions = &versions,
                               .device_facts = &device_facts,
                               .device_free_bytes = &device_free_bytes,
                               .leave_device = &leave_device,
                               .reaches = &reaches};

}  // namespace

const CudaLibrary* fsdp_cuda_library() { return &kLibrary; }

}  // namespace fsdp
