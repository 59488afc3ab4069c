// What libfsdp_cuda.so gives to who opens it. Both come from one build: the number says so.
#pragma once

#include <memory>
#include <string>

namespace fsdp {

class Device;

struct CudaLibrary {
  const char* build = nullptr;  // kFsdpCudaBuild of the library that was built with it
  // 0: `why_none` says why.
  int (*device_count)(std::string& why_none) = nullptr;
  // With all kernels loaded: the first launch of one that is not could wait for work that waits for
  // it. Errors: DeviceError.
  std::unique_ptr<Device> (*open_device)(int ordinal) = nullptr;
};

// The one symbol that libfsdp_cuda.so shows.
extern "C" const CudaLibrary* fsdp_cuda_library();

}  // namespace fsdp
