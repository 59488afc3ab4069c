// The functions that libfsdp_cuda.so exports, as a table. Library and program must be of one build,
// which the table names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

class Device;

// Facts about a GPU that CUDA reports without opening it.
struct CudaDeviceFacts {
  enum class Mode : uint8_t { kShared, kOneProcess, kProhibited };
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string uuid;          // as nvidia-smi prints it, a MIG instance's own; may be empty
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  Mode mode = Mode::kShared;  // which processes may compute on it
};

// Versions as CUDA numbers them: 13020 is 13.2. `driver` is the newest CUDA that the driver
// supports; 0: no driver runs.
struct CudaVersions {
  int driver = 0;
  int runtime = 0;
};

struct CudaLibrary {
  const char* build = nullptr;  // kFsdpCudaBuild of the library that was built with it
  // Returns the number of GPUs. 0: `why_none` is the reason.
  int (*device_count)(std::string& why_none) = nullptr;
  // Opens a device and loads all its kernels: the first launch of a kernel that is not loaded could
  // wait for work that waits for it.
  // Errors: DeviceError.
  std::unique_ptr<Device> (*open_device)(int ordinal) = nullptr;
  // Returns the device's bus address, "0000:1b:00.0", which is the same in all processes of the
  // host.
  // Errors: DeviceError.
  std::string (*device_bus)(int ordinal) = nullptr;
  // Errors of these three: DeviceError.
  CudaVersions (*versions)() = nullptr;
  CudaDeviceFacts (*device_facts)(int ordinal) = nullptr;
  int64_t (*device_free_bytes)(int ordinal) = nullptr;
  // Frees all that this process has on the device: a GPU may serve a single process.
  // Requires: nothing of it is used any more.
  void (*leave_device)(int ordinal) = nullptr;
  // Returns true if kernels on `from` can access the memory of another device, `to`.
  bool (*reaches)(int from, int to) = nullptr;
};

// The only symbol that libfsdp_cuda.so exports.
extern "C" const CudaLibrary* fsdp_cuda_library();

}  // namespace fsdp
