// The table of functions in libfsdp_cuda.so. The library and the program must be from the same
// build, so the table also has the name of the build.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

class Device;

// The facts about a GPU that CUDA reports without opening the GPU.
struct CudaDeviceFacts {
  enum class Mode : uint8_t { kShared, kOneProcess, kProhibited };
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string uuid;          // as in nvidia-smi; a MIG instance has its own; may be empty
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  Mode mode = Mode::kShared;  // the processes that may compute on it
};

// CUDA's version numbers: 13020 is 13.2. `driver` is the newest CUDA version that the driver
// supports, or 0 if no driver is loaded.
struct CudaVersions {
  int driver = 0;
  int runtime = 0;
};

struct CudaLibrary {
  const char* build = nullptr;  // kFsdpCudaBuild of the build that compiled the library
  // Returns the number of GPUs. If there is none, sets `why_none` to the reason.
  int (*device_count)(std::string& why_none) = nullptr;
  // Opens a device and loads all its kernels. If a kernel were loaded at its first launch, this
  // could deadlock: the loading may wait for work that itself waits for the kernel.
  // Errors: DeviceError.
  std::unique_ptr<Device> (*open_device)(int ordinal) = nullptr;
  // Returns the device's bus address, "0000:1b:00.0". The address is the same in all processes of
  // the host.
  // Errors: DeviceError.
  std::string (*device_bus)(int ordinal) = nullptr;
  // The next three functions throw DeviceError.
  CudaVersions (*versions)() = nullptr;
  CudaDeviceFacts (*device_facts)(int ordinal) = nullptr;
  int64_t (*device_free_bytes)(int ordinal) = nullptr;
  // Frees all resources of this process on the device, because a GPU may be limited to one process.
  // Requires: this process does not use any resource of the device afterwards.
  void (*leave_device)(int ordinal) = nullptr;
  // Returns true if kernels on `from` can access the memory of another device, `to`.
  bool (*reaches)(int from, int to) = nullptr;
};

// Returns the table. This is the only symbol that libfsdp_cuda.so exports.
extern "C" const CudaLibrary* fsdp_cuda_library();

}  // namespace fsdp
