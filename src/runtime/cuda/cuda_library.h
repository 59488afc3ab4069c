// What libfsdp_cuda.so gives to who opens it. Both come from one build: the number says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

class Device;

// What CUDA tells of a GPU that it has not opened.
struct CudaDeviceFacts {
  enum class Mode : uint8_t { kShared, kOneProcess, kProhibited };
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string uuid;          // as nvidia-smi writes it, of a MIG instance its own; may be empty
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  Mode mode = Mode::kShared;  // who may compute on it
};

// As CUDA writes them: 13020 is 13.2. Of the driver, the newest CUDA that it serves; 0: none runs.
struct CudaVersions {
  int driver = 0;
  int runtime = 0;
};

struct CudaLibrary {
  const char* build = nullptr;  // kFsdpCudaBuild of the library that was built with it
  // 0: `why_none` says why.
  int (*device_count)(std::string& why_none) = nullptr;
  // With all kernels loaded: the first launch of one that is not could wait for work that waits for
  // it. Errors: DeviceError.
  std::unique_ptr<Device> (*open_device)(int ordinal) = nullptr;
  // On which bus it is, "0000:1b:00.0": equal in all processes of the host. Errors: DeviceError.
  std::string (*device_bus)(int ordinal) = nullptr;
  // Errors of these: DeviceError.
  CudaVersions (*versions)() = nullptr;
  CudaDeviceFacts (*device_facts)(int ordinal) = nullptr;
  int64_t (*device_free_bytes)(int ordinal) = nullptr;
  // Frees what this process has on the device: a GPU may be one process's alone. Requires: nothing
  // of it is used any more.
  void (*leave_device)(int ordinal) = nullptr;
  // Whether kernels of `from` can work on memory of `to`, another device.
  bool (*reaches)(int from, int to) = nullptr;
};

// The one symbol that libfsdp_cuda.so shows.
extern "C" const CudaLibrary* fsdp_cuda_library();

}  // namespace fsdp
