// Tests the simulated CUDA runtime: sticky errors, injected failures, and misuse.
#include <thread>
#include <vector>

#include "simulator/tests/gpu_arrays.h"
#include "simulator/tests/kernels/sim_kernels.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

TEST_CASE("without a simulated GPU there is no device") {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(cudaGetLastError() == cudaErrorNoDevice);
  SimulatedGpu gpu({.devices = 2});
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  CHECK_THROWS_WITH(SimulatedGpu(), doctest::Contains("a second simulated GPU"));
}

TEST_CASE("a script makes the n-th call of a name fail, or the n-th of all") {
  SimulatedGpu gpu;
  cudaStream_t stream = make_stream(gpu, "compute");
  gpu.fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
  float* const x = make_floats(8);
  void* data = nullptr;
  CHECK(cudaMalloc(&data, 8) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&data, 8) == cudaSuccess);
  CHECK(gpu.calls("cudaMalloc") == 3);
  gpu.fail_any(2, cudaErrorUnknown);
  samples::launch_fill(x, 1, 8, stream);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorUnknown);
  CHECK(std::string(cudaGetErrorString(cudaGetLastError())) == "unknown error");
  gpu.fail("cudaLaunchKernel", 1, cudaErrorNoKernelImageForDevice);
  samples::launch_fill(x, 2, 8, stream);
  CHECK(cudaGetLastError() == cudaErrorNoKernelImageForDevice);
  CHECK(download(x, 8, stream) == std::vector<float>(8, 1));
}

TEST_CASE("an error that stays stops all work of the device, and no other's") {
  SimulatedGpu gpu({.schedule = Schedule::kLate, .devices = 2});
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(8);
  require(cudaMemsetAsync(x, 0, 32, stream));
  require(cudaStreamSynchronize(stream));
  samples::launch_fill(x, 1, 8, stream);  // this launch has not run yet
  gpu.fail("cudaEventCreateWithFlags", 1, cudaErrorECCUncorrectable);
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaErrorECCUncorrectable);
  for (int i = 0; i < 2; ++i) CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
  samples::launch_fill(x, 2, 8, stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorECCUncorrectable);
  CHECK(cudaFree(x) == cudaErrorECCUncorrectable);
  CHECK(gpu.take_reports().empty());
  CHECK(gpu.launches().empty());
  std::thread([&] {
    require(cudaSetDevice(1));
    cudaStream_t other = make_stream(gpu, "other");
    float* const y = make_floats(8);
    samples::launch_fill(y, 3, 8, other);
    CHECK(download(y, 8, other) == std::vector<float>(8, 3));
  }).join();
}

TEST_CASE("the default stream is refused unless a test allows it, and then orders with none") {
  SimulatedGpu gpu;
  float* const x = make_floats(8);
  samples::launch_fill(x, 1, 8, nullptr);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"cudaLaunchKernel: work on the default stream"});
  CHECK(cudaMemset(x, 0, 32) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamSynchronize(nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(gpu.take_reports().size() == 2);
  gpu.allow_default_stream(true);
  samples::launch_fill(x, 1, 8, nullptr);
  std::vector<float> values(8);
  require(cudaMemcpy(values.data(), x, 32, cudaMemcpyDeviceToHost));
  CHECK(values == std::vector<float>(8, 1));
  samples::launch_fill(x, 2, 8, nullptr);
  cudaStream_t stream = make_stream(gpu, "compute");
  samples::launch_fill(x, 3, 8, stream);
  check_one_report(gpu, {"the default stream", "compute", "nothing orders them"});
  cudaStream_t blocking = nullptr;
  CHECK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault) == cudaErrorInvalidValue);
  check_one_report(gpu, {"a stream that waits for the default stream"});
}

TEST_CASE("what belongs to another device is refused") {
  SimulatedGpu gpu({.devices = 2});
  cudaStream_t first = make_stream(gpu, "first");
  float* const x = make_floats(8);
  gpu.name_memory(x, "x");
  cudaEvent_t event = make_event();
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  require(cudaSetDevice(1));
  samples::launch_fill(x, 1, 8, first);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"fill<float> on first of device 0, and the current device is 1"});
  cudaStream_t second = make_stream(gpu, "second");
  CHECK(cudaEventRecord(event, second) == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"an event of device 0 is recorded on second of device 1"});
  require(cudaEventRecord(event, first));
  CHECK(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
  samples::launch_fill(x, 1, 8, second);
  CHECK(cudaStreamSynchronize(second) == cudaErrorLaunchFailure);
  check_one_report(gpu, {"outside of device memory"});
}

TEST_CASE("handles that are gone are refused, and what was issued to them is done") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  cudaStream_t stream = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const x = make_floats(8);
  samples::launch_fill(x, 1, 8, stream);
  order(stream, compute);
  require(cudaStreamDestroy(stream));
  CHECK(download(x, 8, compute) == std::vector<float>(8, 1));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"cudaStreamSynchronize: gather, which was destroyed"});
  cudaEvent_t event = make_event();
  require(cudaEventDestroy(event));
  CHECK(cudaEventRecord(event, compute) == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"an event that is not there"});
}

TEST_CASE("handles of nobody, and what is not simulated, are refused") {
  SimulatedGpu gpu;
  int made_by_nobody = 0;
  CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(&made_by_nobody)) ==
        cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"cudaStreamSynchronize: a stream that nobody has made"});
  CHECK(cudaStreamDestroy(nullptr) == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"cudaStreamDestroy: the default stream"});
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess) ==
        cudaErrorInvalidValue);
  check_one_report(gpu, {"an event of several processes, which is not simulated"});
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0) == cudaErrorInvalidValue);
  check_one_report(gpu, {"attribute 13, which is not simulated; add it to "});
}

TEST_CASE("the host is told that work is not done yet, and events need a time to tell one") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(8);
  cudaEvent_t from = make_event(cudaEventDefault), to = make_event(cudaEventDefault);
  CHECK(cudaEventQuery(from) == cudaSuccess);
  require(cudaEventRecord(from, stream));
  for (int i = 0; i < 5; ++i) samples::launch_fill(x, 1, 8, stream);
  require(cudaEventRecord(to, stream));
  CHECK(cudaEventQuery(to) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);  // as in CUDA, the query clears it
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, from, to) == cudaErrorNotReady);
  require(cudaEventSynchronize(to));
  require(cudaStreamQuery(stream));
  require(cudaEventElapsedTime(&milliseconds, from, to));
  CHECK(milliseconds == 0);  // no kernel slept
  CHECK(cudaEventElapsedTime(&milliseconds, from, make_event()) == cudaErrorInvalidResourceHandle);
  check_one_report(gpu, {"does not tell the time"});
}

TEST_CASE("waits of the host are counted by what made them") {
  SimulatedGpu gpu;
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(8);
  cudaEvent_t event = make_event();
  for (int i = 0; i < 3; ++i) {
    samples::launch_fill(x, 1, 8, stream);
    require(cudaEventRecord(event, stream));
    static_cast<void>(cudaEventQuery(event));
  }
  CHECK(gpu.host_waits().empty());
  download(x, 8, stream);
  require(cudaStreamSynchronize(stream));
  require(cudaStreamSynchronize(stream));
  require(cudaEventSynchronize(event));
  require(cudaDeviceSynchronize());
  CHECK(gpu.host_waits() ==
        std::map<std::string, int64_t>{{"cudaDeviceSynchronize", 1},
                                       {"cudaEventSynchronize", 1},
                                       {"cudaMemcpyAsync to pageable memory", 1},
                                       {"cudaStreamSynchronize", 2}});
  CHECK(gpu.calls("cudaEventRecord") == 3);
  CHECK(gpu.calls("cudaEventDestroy") == 0);
}

TEST_CASE("threads of the host issue to streams of their own, and their ends are seen") {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    SimulatedGpu gpu({.seed = seed});
    cudaStream_t first = make_stream(gpu, "main");
    float* const x = make_floats(256);
    samples::launch_fill(x, 1, 256, first);
    require(cudaStreamSynchronize(first));  // threads that start later have seen it too
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&gpu, x, rank] {
        cudaStream_t own = make_stream(gpu, "rank " + std::to_string(rank));
        float* const part = x + rank * 64;
        for (int i = 0; i < 10; ++i) samples::launch_add(part, part, 1, 64, own);
        require(cudaStreamSynchronize(own));
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(download(x, 256, first) == std::vector<float>(256, 11));
    CHECK(gpu.launches().size() == 41);
  }
}
