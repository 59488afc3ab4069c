// Tests the simulated CUDA runtime: existing memory, access rights, and the time at which copies
// read memory.
#include <signal.h>

#include <cstring>
#include <vector>

#include "simulator/tests/gpu_arrays.h"
#include "simulator/tests/in_child.h"
#include "simulator/tests/kernels/sim_kernels.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

TEST_CASE("what was freed is refused by its name, and its place is not taken again") {
  for (const bool by_copy : {false, true}) {
    SimulatedGpu gpu;
    cudaStream_t stream = make_stream(gpu, "compute");
    float* const losses = make_floats(64);
    gpu.name_memory(losses, "losses");
    require(cudaFree(losses));
    CHECK(make_floats(64) != losses);
    by_copy ? void(cudaMemsetAsync(losses, 0, 256, stream))
            : samples::launch_fill(losses, 1, 64, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    check_one_report(gpu, {"bytes in losses, which was freed"});
  }
}

TEST_CASE("freeing waits for the device, so that work that was issued before is none after") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(64);
  float* const pinned = make_pinned_floats(64);
  samples::launch_fill(x, 1, 64, stream);
  require(cudaMemcpyAsync(pinned, x, 256, cudaMemcpyDefault, stream));
  require(cudaFreeHost(pinned));
  require(cudaFree(x));
  require(cudaFree(nullptr));
  CHECK(gpu.host_waits() == std::map<std::string, int64_t>{{"cudaFree", 1}, {"cudaFreeHost", 1}});
  CHECK(cudaFree(x) == cudaErrorInvalidValue);
  check_one_report(gpu, {"cudaFree: no allocation begins there, or not any more"});
  CHECK(cudaFree(&gpu) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(pinned) == cudaErrorInvalidValue);
  CHECK(gpu.take_reports().size() == 2);
}

TEST_CASE("copies and sets stay inside of an allocation, and read what was written") {
  const auto refused = [](const std::string& part, auto act) {
    SimulatedGpu gpu;
    cudaStream_t stream = make_stream(gpu, "compute");
    float* const x = make_floats(64);
    float* const y = make_floats(64);
    gpu.name_memory(x, "x");
    act(x, y, stream);
    check_one_report(gpu, {part});
  };
  refused("256 bytes at byte 4 of x, over its end", [](float* x, float*, cudaStream_t stream) {
    static_cast<void>(cudaMemsetAsync(x + 1, 0, 256, stream));
  });
  refused("260 bytes at byte 0 of allocation 2 of 256 bytes, over",
          [](float* x, float* y, cudaStream_t stream) {
            static_cast<void>(cudaMemsetAsync(y, 0, 256, stream));
            static_cast<void>(cudaMemcpyAsync(x, y, 260, cudaMemcpyDeviceToDevice, stream));
          });
  refused("a read of 256 bytes at byte 0 of x, of which nobody has written all",
          [](float* x, float* y, cudaStream_t stream) {
            static_cast<void>(cudaMemsetAsync(x, 0, 255, stream));
            static_cast<void>(cudaMemcpyAsync(y, x, 256, cudaMemcpyDeviceToDevice, stream));
          });
  refused("are copied in direction", [](float* x, float* y, cudaStream_t stream) {
    CHECK(cudaMemcpyAsync(y, x, 4, cudaMemcpyHostToDevice, stream) ==
          cudaErrorInvalidMemcpyDirection);
  });
  refused("the host's own memory is set by a device", [](float*, float*, cudaStream_t stream) {
    float here = 0;
    CHECK(cudaMemsetAsync(&here, 0, 4, stream) == cudaErrorInvalidValue);
  });
}

TEST_CASE("pageable memory is read when a copy is issued, pinned memory when it runs") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(2);
  std::vector<float> pageable{1};
  float* const pinned = make_pinned_floats(1);
  *pinned = 1;
  require(cudaMemcpyAsync(x, pageable.data(), 4, cudaMemcpyDefault, stream));
  require(cudaMemcpyAsync(x + 1, pinned, 4, cudaMemcpyDefault, stream));
  pageable[0] = *pinned = 2;  // before the pinned copy has run
  CHECK(gpu.host_waits().empty());
  CHECK(download(x, 2, stream) == std::vector<float>{1, 2});
  CHECK(gpu.host_waits() ==
        std::map<std::string, int64_t>{{"cudaMemcpyAsync to pageable memory", 1}});
  require(cudaMemsetAsync(x, 0, 8, stream));
  require(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDefault, stream));
  CHECK(*pinned == 2);  // the copy has not run yet
  require(cudaStreamSynchronize(stream));
  CHECK(*pinned == 0);
}

TEST_CASE("a free of pinned memory waits for all devices of the process") {
  for (const bool one_process : {false, true}) {
    SimulatedGpu gpu({.schedule = Schedule::kLate, .devices = 2, .one_process = one_process});
    require(cudaSetDevice(1));
    cudaStream_t stream = make_stream(gpu, "compute");
    float* const x = make_floats(2);
    float* const pinned = make_pinned_floats(1);
    for (int i = 0; i < 3; ++i) require(cudaMemsetAsync(x, 0, 8, stream));
    require(cudaSetDevice(0));
    require(cudaFreeHost(pinned));
    CHECK((cudaStreamQuery(stream) == cudaSuccess) == one_process);
    require(cudaSetDevice(1));
    require(cudaStreamSynchronize(stream));
    CHECK(gpu.take_reports().empty());
  }
}

TEST_CASE("a device has so much memory and no more") {
  SimulatedGpu gpu({.bytes_each = 1000});
  void* data = nullptr;
  CHECK(cudaMalloc(&data, 1001) == cudaErrorMemoryAllocation);
  CHECK(data == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  require(cudaMalloc(&data, 600));
  size_t left = 0, total = 0;
  require(cudaMemGetInfo(&left, &total));
  CHECK(left == 400);
  CHECK(total == 1000);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, 401) == cudaErrorMemoryAllocation);
  require(cudaFree(data));
  CHECK(cudaMalloc(&more, 1000) == cudaSuccess);
  CHECK(cudaMalloc(&more, 0) == cudaSuccess);
  CHECK(more == nullptr);
  CHECK(cudaHostAlloc(&more, 8, cudaHostAllocMapped) == cudaErrorInvalidValue);
  check_one_report(gpu, {"which are not simulated"});
}

TEST_CASE("the host that touches device memory faults, while no work runs") {
  SimulatedGpu gpu;
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(64);
  samples::launch_fill(x, 1, 64, stream);
  require(cudaStreamSynchronize(stream));
  auto* const value = static_cast<volatile float*>(x);
  for (const auto& touch : std::vector<std::function<void()>>{[&] { static_cast<void>(*value); },
                                                              [&] { *value = 1; }}) {
    const End end = in_child(touch);
    CHECK(end.signal == SIGSEGV);
    CHECK(end.said.find("the host touched device memory") != std::string::npos);
  }
  float* const pinned = make_pinned_floats(1);
  CHECK(in_child([&] { *pinned = 1; }).signal == 0);
}
