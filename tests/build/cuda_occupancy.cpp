// usage: cuda_occupancy <LINES
// Each input line "MAJOR MINOR THREADS REGISTERS SHARED" describes a kernel on a compute
// capability. The program prints the percentage of a multiprocessor's threads that can run this
// kernel at once.
#include <cuda_occupancy.h>

#include <array>
#include <cstdio>

namespace {

// The limits of an architecture. Source: CUDA C++ Programming Guide, "Technical Specifications per
// Compute Capability".
struct Architecture {
  int major = 0, minor = 0;
  int threads = 0;     // limit per multiprocessor
  int shared_kib = 0;  // shared memory per multiprocessor
  int block_kib = 0;   // shared memory per block, if the block opts in
};
constexpr std::array kArchitectures{
    Architecture{8, 0, 2048, 164, 163},  Architecture{8, 6, 1536, 100, 99},
    Architecture{8, 9, 1536, 100, 99},   Architecture{9, 0, 2048, 228, 227},
    Architecture{10, 0, 2048, 228, 227}, Architecture{12, 0, 1536, 100, 99}};

const Architecture* find(int major, int minor) {
  for (const Architecture& one : kArchitectures) {
    if (one.major == major && one.minor == minor) return &one;
  }
  return nullptr;
}

cudaOccDeviceProp properties_of(const Architecture& architecture, int shared) {
  cudaOccDeviceProp properties;
  properties.computeMajor = architecture.major;
  properties.computeMinor = architecture.minor;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsPerMultiprocessor = architecture.threads;
  properties.regsPerBlock = 65536;
  properties.regsPerMultiprocessor = 65536;
  properties.warpSize = 32;
  properties.sharedMemPerBlock = 48 * 1024;
  properties.sharedMemPerMultiprocessor = architecture.shared_kib * 1024UL;
  properties.numSms = 1;
  properties.sharedMemPerBlockOptin = architecture.block_kib * 1024UL;
  // From 9.0 on, ptxas counts the memory that CUDA reserves as the kernel's own memory.
  properties.reservedSharedMemPerBlock = architecture.major >= 9 && shared > 0 ? 0 : 1024;
  return properties;
}

}  // namespace

int main() {
  int major = 0, minor = 0, threads = 0, registers = 0, shared = 0;
  int words = 0;
  while ((words = std::scanf("%d %d %d %d %d", &major, &minor, &threads, &registers, &shared)) ==
         5) {
    const Architecture* architecture = find(major, minor);
    if (architecture == nullptr) {
      std::fprintf(stderr, "cuda_occupancy: nothing is known of %d.%d\n", major, minor);
      return 1;
    }
    const cudaOccDeviceProp properties = properties_of(*architecture, shared);
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = threads;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = static_cast<size_t>(shared);
    const cudaOccDeviceState state;
    cudaOccResult result;
    const cudaOccError failed = cudaOccMaxActiveBlocksPerMultiprocessor(
        &result, &properties, &kernel, &state, threads, /*dynamicSmemSize=*/0);
    if (failed != CUDA_OCC_SUCCESS) {
      std::fprintf(stderr, "cuda_occupancy: error %d\n", static_cast<int>(failed));
      return 1;
    }
    std::printf("%d\n",
                100 * result.activeBlocksPerMultiprocessor * threads / architecture->threads);
  }
  return words == EOF ? 0 : 1;
}
