// The simulated CUDA runtime: work that runs late, in the order that streams and events give it.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <vector>

#include "sim/kernels/sim_kernels.h"
#include "support/sim/cuda/simulated_gpu.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

TEST_CASE("a kernel of nvcc's runs on the host, between two copies") {
  for (const Schedule schedule : {Schedule::kRandom, Schedule::kLate, Schedule::kEager}) {
    SimulatedGpu gpu({.schedule = schedule});
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    std::vector<float> values(1000, 3), result(1000);
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, 4000) == cudaSuccess);
    auto* x = static_cast<float*>(data);
    REQUIRE(cudaMemcpyAsync(x, values.data(), 4000, cudaMemcpyDefault, stream) == cudaSuccess);
    values.assign(1000, 7);  // taken already
    kernels::launch_add(x, x, 2, 1000, stream);
    REQUIRE(cudaMemcpyAsync(result.data(), x, 4000, cudaMemcpyDefault, stream) == cudaSuccess);
    CHECK(result == std::vector<float>(1000, 5));
    CHECK(cudaFree(x) == cudaSuccess);
    CHECK(gpu.launches().at(0).kernel == "add");
    CHECK(gpu.launches().at(0).report.stores == 1000);
  }
}
