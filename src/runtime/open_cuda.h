// Finds the GPUs of this machine, if any. All CUDA code is in libfsdp_cuda.so, which is opened on
// first use, so a program without a GPU neither links nor loads any of it.
#pragma once

#include <string>

namespace fsdp {

class Device;
struct CudaLibrary;

struct CudaDevices {
  int count = 0;
  // The reason why there is none; empty if there is one. "no NVIDIA driver (libcuda.so.1 was not
  // found)"
  std::string why_none;
  std::string hint;  // how to change that; may be empty
};

// Returns the GPUs; searches once per process. If there is a driver, LibTorch's CUDA library is
// loaded first: this must precede any question to LibTorch whether it has CUDA, as a negative
// answer stays. libfsdp_cuda.so is in the library folder beside the program's folder, or on the
// loader's search path, which an installed package and the build tree set. Thread-safe.
const CudaDevices& cuda_devices();

// Returns the device of this number, which lasts as long as the process. The first call opens it
// and loads its kernels. Thread-safe.
// Errors: DeviceError with the reason if there is none.
const Device& cuda_device(int ordinal);
// Returns the other functions of libfsdp_cuda.so; null if cuda_devices() has no GPU.
const CudaLibrary* cuda_library();

}  // namespace fsdp
