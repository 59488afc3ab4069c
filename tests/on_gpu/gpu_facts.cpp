// Prints one JSON object about the GPUs that this process sees: name, memory and compute capability
// of each, and the versions of driver, CUDA runtime and NCCL. Without a GPU, it prints the reason.
#include <ATen/Parallel.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/nccl/nccl_library.h"
#include "runtime/open_cuda.h"

namespace {

nlohmann::json facts_of(int ordinal) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) return {{"name", "unknown"}};
  return {{"name", properties.name},
          {"memory_bytes", properties.totalGlobalMem},
          {"capability", fmt::format("{}.{}", properties.major, properties.minor)},
          {"multiprocessors", properties.multiProcessorCount}};
}

std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Returns NCCL's version, or an empty string if LibTorch has loaded no NCCL.
std::string nccl_text() {
  int version = 0;
  try {
    if (fsdp::nccl::library().get_version(&version) != fsdp::nccl::Result::kSuccess) return {};
  } catch (const fsdp::DeviceError&) {
    return {};
  }
  return fsdp::nccl::version_text(version);
}

}  // namespace

int main() {
  at::set_num_threads(1);  // loads LibTorch and, with it, LibTorch's CUDA library
  const fsdp::CudaDevices& devices = fsdp::cuda_devices();
  nlohmann::json facts{{"gpus", nlohmann::json::array()}, {"why_none", devices.why_none}};
  for (int ordinal = 0; ordinal < devices.count; ++ordinal) {
    facts["gpus"].push_back(facts_of(ordinal));
  }
  if (devices.count > 0) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    facts["driver_cuda"] = cuda_text(driver);
    facts["runtime_cuda"] = cuda_text(runtime);
    facts["nccl"] = nccl_text();
  }
  std::puts(facts.dump().c_str());
  return 0;
}
