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
  // if there is a GPU.
  std::string why_none;
  std::string hint;  // the remedy; may be empty
};

// Returns the GPUs. The first call in a process searches for GPUs. If there is a driver, this call
// also loads LibTorch's CUDA library. So it must come before any call that asks LibTorch if it has
// CUDA, because LibTorch keeps a negative answer. libfsdp_cuda.so must be in the library folder
// beside the program's folder, or on the loader's search path. In an installed package and in the
// build tree this is the case. Thread-safe.
const CudaDevices& cuda_devices();

// Returns the device with this number. The device exists until the process ends. The first call
// opens the device and loads its kernels. Thread-safe.
// Errors: DeviceError if there is no such device. The error has the reason.
const Device& cuda_device(int ordinal);
// Returns the table of functions in libfsdp_cuda.so, or null if cuda_devices() has no GPU.
const CudaLibrary* cuda_library();

}  // namespace fsdp
