// Finds the GPUs of this machine, if any. All CUDA code is in libfsdp_cuda.so, which is opened on
// first use, so a program without a GPU neither links nor loads CUDA code.
#pragma once

#include <string>

namespace fsdp {

class Device;
struct CudaLibrary;

struct CudaDevices {
  int count = 0;
  // The reason why there is no GPU, such as "no NVIDIA driver (libcuda.so.1 was not found)". Empty
  // if there is one.
  std::string why_none;
  std::string hint;  // the remedy; may be empty
};

// Returns the GPUs. The first call in a process searches for them. If there is a driver, LibTorch's
// CUDA library is loaded first. This must happen before LibTorch is asked for CUDA, because
// LibTorch keeps a negative answer. libfsdp_cuda.so must be in the library folder beside the
// program's folder or on the loader's search path, which an installed package and the build tree
// set. Thread-safe.
const CudaDevices& cuda_devices();

// Returns the device of this number, which exists until the process ends. The first call opens the
// device and loads its kernels. Thread-safe.
// Errors: DeviceError, which gives the reason, if there is no such device.
const Device& cuda_device(int ordinal);
// Returns the other functions of libfsdp_cuda.so; null if cuda_devices() has no GPU.
const CudaLibrary* cuda_library();

}  // namespace fsdp
