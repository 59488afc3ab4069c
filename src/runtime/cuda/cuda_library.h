// The functions that libfsdp_cuda.so exports, as a table. The library and the program must be from
// the same build. The table holds the name of the build.
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
  std::string uuid;          // as printed by nvidia-smi; of a MIG instance its own; may be empty
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  Mode mode = Mode::kShared;  // the processes that may compute on it
};

// Versions as CUDA numbers them: 13020 is 13.2. `driver` is the newest CUDA version that the driver
// supports. 0: no driver runs.
struct CudaVersions {
  int driver = 0;
  int runtime = 0;
};

struct CudaLibrary {
  const char* build = nullptr;  // kFsdpCudaBuild of the build that compiled the library
  // Returns the number of GPUs. If it is 0, sets `why_none`.
  int (*device_count)(std::string& why_none) = nullptr;
  // Opens a device and loads all its kernels. Otherwise the first launch of a kernel could
  // deadlock: loading it can wait for work that itself waits for the kernel.
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
  // Requires: no resource of the device is used any more.
  void (*leave_device)(int ordinal) = nullptr;
  // Returns true if kernels on `from` can access the memory of another device, `to`.
  bool (*reaches)(int from, int to) = nullptr;
};

// Returns the table. This is the only symbol that libfsdp_cuda.so exports.
extern "C" const CudaLibrary* fsdp_cuda_library();

}  // namespace fsdp
