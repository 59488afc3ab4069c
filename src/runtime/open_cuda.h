// The GPUs of this machine, if it has any: what is CUDA's lies in libfsdp_cuda.so, which is opened
// when it is asked for, so that a program without GPU neither links nor loads anything of it.
#pragma once

#include <string>

namespace fsdp {

class Device;
struct CudaLibrary;

struct CudaDevices {
  int count = 0;
  // Why there is none; empty if there is one. "no NVIDIA driver (libcuda.so.1 was not found)"
  std::string why_none;
  std::string hint;  // what would change that; may be empty
};

// Looks once a process. Where a driver is seen, LibTorch's own CUDA library is loaded first: that
// has to come before anything asks LibTorch whether it has CUDA, as a negative answer stays.
// libfsdp_cuda.so lies in the library folder beside the program's, or where the loader finds
// it: an installed package and the build tree have told it. Thread-safe.
const CudaDevices& cuda_devices();

// The device of this number, for good: made at the first call, its kernels loaded. Thread-safe.
// Errors: DeviceError that says why there is none.
const Device& cuda_device(int ordinal);
// What else libfsdp_cuda.so tells; null where cuda_devices() are none.
const CudaLibrary* cuda_library();

}  // namespace fsdp
