// usage: print_gpus [ORDINAL [LIBRARY…]]
// Loads the libraries, as a program loads LibTorch, and prints the GPUs that it finds. With an
// ordinal, it also opens this GPU and prints the result.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fsdp/error.h"
#include "runtime/cuda/cuda_library.h"
#include "runtime/device.h"
#include "runtime/open_cuda.h"

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    if (dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) std::printf("%s\n", dlerror());
  }
  const fsdp::CudaDevices& devices = fsdp::cuda_devices();
  std::printf("%d GPUs; why none: %s; hint: %s\n", devices.count, devices.why_none.c_str(),
              devices.hint.c_str());
  const bool has_torch = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW) != nullptr;
  std::printf("libtorch_cuda.so is %s\n", has_torch ? "loaded" : "not loaded");
  if (const fsdp::CudaLibrary* library = fsdp::cuda_library()) {
    std::printf("CUDA %d on a driver for %d\n", library->versions().runtime,
                library->versions().driver);
  }
  if (argc < 2) return 0;
  const int ordinal = std::atoi(argv[1]);
  try {
    const fsdp::Device& device = fsdp::cuda_device(ordinal);
    const bool same = &device == &fsdp::cuda_device(ordinal);
    std::printf("%s, %s\n", std::string(device.name()).c_str(), same ? "for good" : "made twice");
  } catch (const fsdp::DeviceError& error) {
    std::printf("DeviceError: %s\n", error.what());
  }
}
