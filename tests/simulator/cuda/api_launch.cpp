// The CUDA runtime's functions that nvcc's generated code calls: registration and launches.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "simulator/cuda/fat_binary.h"
#include "simulator/cuda/kernel_registry.h"
#include "simulator/cuda/simulation.h"

using fsdp::testing::ptx::Kernel;
using namespace fsdp::testing::sim;

namespace {

// The configuration of a launch. A launch consists of two calls, and this exists between them. No
// other call runs between the two.
struct Configuration {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

Configuration& configuration() {
  static thread_local Configuration given;
  return given;
}

const Kernel& kernel_of(const void* host) {
  try {
    return KernelRegistry::instance().find(host);
  } catch (const fsdp::testing::ptx::Objection& objection) {
    throw Refusal(cudaErrorInvalidDeviceFunction, objection.what());
  }
}

void require_launchable(const Configuration& given, const Kernel& kernel) {
  const uint64_t threads = uint64_t{given.block.x} * given.block.y * given.block.z;
  // The limits of compute capability 8.0.
  const bool fits = given.grid.x > 0 && given.grid.x <= 0x7fffffffU && given.grid.y > 0 &&
                    given.grid.y <= 65535 && given.grid.z > 0 && given.grid.z <= 65535 &&
                    threads > 0 && threads <= 1024 && given.block.z <= 64;
  if (!fits) {
    throw Refusal(cudaErrorInvalidConfiguration,
                  fmt::format("{} with a grid of ({}, {}, {}) blocks of ({}, {}, {}) threads",
                              readable_name(kernel.name), given.grid.x, given.grid.y, given.grid.z,
                              given.block.x, given.block.y, given.block.z));
  }
  if (given.shared_bytes != 0) {
    throw Refusal(cudaErrorInvalidValue,
                  fmt::format("{} with {} bytes of shared memory of the launch's size, which is "
                              "not simulated; declare the array with its size",
                              readable_name(kernel.name), given.shared_bytes));
  }
}

std::vector<std::byte> parameters_of(const Kernel& kernel, void** arguments) {
  std::vector<std::byte> bytes(static_cast<size_t>(kernel.parameter_bytes));
  // `arguments` points to each argument. PTX expects them in one block, at aligned offsets.
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const auto& [space, offset, count] = kernel.parameters[i];
    std::memcpy(bytes.data() + offset, arguments[i], static_cast<size_t>(count));
  }
  return bytes;
}

cudaError_t launch(Simulation& simulation, const void* host, const Configuration& given,
                   void** arguments) {
  const Kernel& kernel = kernel_of(host);
  require_launchable(given, kernel);
  SimulatedStream& stream = simulation.stream(given.stream);
  if (stream.device != simulation.host().device) {
    throw Refusal(cudaErrorInvalidResourceHandle,
                  fmt::format("{} on {} of device {}, and the current device is {}; call "
                              "cudaSetDevice first",
                              readable_name(kernel.name), stream.name, stream.device,
                              simulation.host().device));
  }
  simulation.load(host, "cudaLaunchKernel");
  simulation.launch(stream, readable_name(kernel.name),
                    {.kernel = &kernel,
                     .grid = {given.grid.x, given.grid.y, given.grid.z},
                     .block = {given.block.x, given.block.y, given.block.z},
                     .parameters = parameters_of(kernel, arguments)});
  return cudaSuccess;
}

cudaError_t launch(const void* host, const Configuration& given, void** arguments) {
  return call("cudaLaunchKernel",
              [&](Simulation& simulation) { return launch(simulation, host, given, arguments); });
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return KernelRegistry::instance().add_binary(wrapper);
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** handle) { KernelRegistry::instance().remove_binary(handle); }
char __cudaInitModule(void** /*handle*/) { return 1; }

void __cudaRegisterFunction(void** handle, const char* host, char* /*stub*/, const char* name,
                            int /*thread_limit*/, uint3* /*thread*/, uint3* /*block*/,
                            dim3* /*block_size*/, dim3* /*grid*/, int* /*warp_size*/) {
  KernelRegistry::instance().add_kernel(handle, host, name);
}

// Ignores variables. If a kernel's module has a variable, the parser refuses the module when the
// kernel is launched.
void __cudaRegisterVar(void** /*handle*/, char* /*host*/, char* /*device*/, const char* /*name*/,
                       int /*ext*/, size_t /*bytes*/, int /*constant*/, int /*global*/) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  configuration() = {grid, block, shared_bytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  *grid = configuration().grid;
  *block = configuration().block;
  *shared_bytes = configuration().shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration().stream;
  return cudaSuccess;
}

// nvcc's code calls this once in the process, and several simulated GPUs may exist one after
// another. So the handle is the host function itself.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel, {grid, block, shared_bytes, stream}, arguments);
}

cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return launch(host, {grid, block, shared_bytes, stream}, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* given, const void* host,
                                void** arguments) {
  return call("cudaLaunchKernel", [&](Simulation& simulation) {
    if (given->numAttrs != 0) {
      throw Refusal(
          cudaErrorInvalidValue,
          fmt::format("a launch with {} attributes, which are not simulated", given->numAttrs));
    }
    return launch(simulation, host,
                  {given->gridDim, given->blockDim, given->dynamicSmemBytes, given->stream},
                  arguments);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t /*stream*/, cudaHostFn_t /*function*/, void* /*data*/) {
  return call("cudaLaunchHostFunc", [](Simulation&) -> cudaError_t {
    throw Refusal(cudaErrorNotSupported,
                  "a host function runs on a thread of the driver and holds the stream up; keep "
                  "the call beside an event, as CudaStream::call does");
  });
}

// Leaves the values that ptxas determines at 0, for example the number of registers.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host) {
  return call("cudaFuncGetAttributes", [&](Simulation& simulation) {
    const Kernel& kernel = kernel_of(host);
    simulation.load(host, "cudaFuncGetAttributes");
    *attributes = {};
    attributes->sharedSizeBytes = static_cast<size_t>(kernel.shared_bytes);
    attributes->localSizeBytes = static_cast<size_t>(kernel.local_bytes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = kArchitecture;
    attributes->binaryVersion = kArchitecture;
    return cudaSuccess;
  });
}

}  // extern "C"
