// The GPUs of this machine, if it has any: what is CUDA's lies in libfsdp_cuda.so, which is opened
// when it is asked for, so that a program without GPU neither links nor loads anything of it.
#pragma once

#include <string>

namespace fsdp {

class Device;

struct CudaDevices {
  int count = 0;
  // Why there is none; empty if there is one. "no driver (libcuda.so.1 was not found)"
  std::string why_none;
};

// Looks once a process. Where a driver is seen, LibTorch's own CUDA library is loaded first: that
// has to come before anything asks LibTorch whether it has CUDA, as a negative answer stays.
const CudaDevices& cuda_devices();

// The device of this number, for good: made at the first call, its kernels loaded. Thread-safe.
// Errors: DeviceError that says why there is none.
const Device& cuda_device(int ordinal);

}  // namespace fsdp
