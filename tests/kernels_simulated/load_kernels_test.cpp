#include <doctest/doctest.h>

#include "fsdp/error.h"
#include "kernels/cuda/kernels.h"
#include "simulator/cuda/kernel_registry.h"
#include "simulator/cuda/simulated_gpu.h"

namespace fsdp::kernels {
namespace {

constexpr const char* kLoads = "cudaFuncGetAttributes";

TEST_CASE("all kernels load, and whichever does not is named") {
  int64_t kernels = 0;
  {
    testing::sim::SimulatedGpu gpu;
    CHECK_NOTHROW(cuda::load_kernels());
    kernels = gpu.calls(kLoads);
    CHECK(gpu.take_reports().empty());
  }
  const size_t registered = testing::sim::KernelRegistry::instance().hosts().size();
  CHECK(registered > 19);
  CHECK(static_cast<size_t>(kernels) == registered);
  for (int64_t n = 1; n <= kernels; ++n) {
    testing::sim::SimulatedGpu gpu;
    gpu.fail(kLoads, n, cudaErrorInvalidDeviceFunction);
    CHECK_THROWS_WITH_AS(cuda::load_kernels(), doctest::Contains("loading the kernel "),
                         DeviceError);
    CHECK(gpu.take_reports().empty());
  }
}

}  // namespace
}  // namespace fsdp::kernels
