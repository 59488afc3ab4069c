// Tests the library's own CUDA device with the simulated runtime.
#include "runtime/cuda/cuda_device.h"

#include <fsdp/error.h>

#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <thread>

#include "kernels/kernel_table.h"
#include "simulator/tests/gpu_arrays.h"
#include "simulator/tests/kernels/sim_kernels.h"

using namespace fsdp;
using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

const kernels::KernelTable kNoKernels{};

float* floats(const Buffer& memory) { return static_cast<float*>(memory.data()); }

}  // namespace

TEST_CASE("streams of the device wait for events, and calls are made when work is done") {
  for (const Schedule schedule : kAllSchedules) {
    SimulatedGpu gpu({.schedule = schedule});
    const CudaDevice device(0, kNoKernels);
    const Buffer memory = device.allocate(256, MemoryKind::kDevice);
    const auto gather = device.make_stream({.name = "gather", .priority = StreamPriority::kHigh});
    const auto compute = device.make_stream({.name = "compute"});
    Event gathered = device.make_event();
    samples::launch_fill(floats(memory), 2, 64, cuda_stream(*gather).handle());
    gather->record(gathered);
    compute->wait(gathered);
    samples::launch_add(floats(memory), floats(memory), 1, 64, cuda_stream(*compute).handle());
    int calls = 0;
    compute->call([&] { ++calls; });
    std::vector<float> values(64);
    compute->read(values.data(), memory.data(), 256);
    CHECK(values == std::vector<float>(64, 3));
    CHECK(calls == 1);
    CHECK(gathered.reached());
    CHECK(gpu.take_reports().empty());
  }
}

// [Note: one context a process]
TEST_CASE("a process that computes on GPU 3 has no context on another one") {
  SimulatedGpu gpu({.devices = 4});
  {
    const CudaDevice device(3, kNoKernels);
    Buffer memory = device.allocate(256, MemoryKind::kDevice);
    Buffer pinned = device.allocate(256, MemoryKind::kPinned);
    auto stream = device.make_stream({.name = "stream"});
    Event done = device.make_event();
    stream->record(done);
    // This new thread has not chosen a device.
    std::thread([&] {
      while (!done.reached()) std::this_thread::yield();
      done.synchronize();
      stream->tell_time([](int64_t /*ns*/) {});
      stream->synchronize();
      device.drain();
      memory = {};
      pinned = {};
      stream.reset();
    }).join();
  }
  CHECK(gpu.contexts() == std::set<int>{3});
  CHECK(cudaSetDevice(1) == cudaSuccess);  // a user's choice is kept
  const CudaDevice device(3, kNoKernels);
  int current = 0;
  CHECK(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == 1);
}

TEST_CASE("a call is made once its stream is there, and not before") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  const CudaDevice device(0, kNoKernels);
  const Buffer memory = device.allocate(256, MemoryKind::kDevice);
  const auto compute = device.make_stream({.name = "compute"});
  const auto fill = [&] {
    samples::launch_fill(floats(memory), 2, 64, cuda_stream(*compute).handle());
  };
  std::vector<int> calls;
  for (int i = 0; i < 9; ++i) fill();
  compute->call([&] { calls.push_back(1); });
  CHECK(calls.empty());
  for (int i = 0; i < 9; ++i) fill();
  // Each call checks whether the previous call is due, and the query runs one piece of work.
  compute->call([&] { calls.push_back(2); });
  Event done = device.make_event();
  compute->record(done);
  CHECK(calls.empty());
  compute->synchronize();
  CHECK(calls == std::vector<int>{1, 2});
}

TEST_CASE("a stream has the priority that was asked for") {
  SimulatedGpu gpu;
  const CudaDevice device(0, kNoKernels);
  const auto priority_of = [&](StreamPriority asked) {
    const auto stream = device.make_stream({.name = "stream", .priority = asked});
    int priority = 1;
    require(cudaStreamGetPriority(cuda_stream(*stream).handle(), &priority));
    return priority;
  };
  int lowest = 1, highest = 1;
  require(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  CHECK(highest < lowest);
  CHECK(priority_of(StreamPriority::kHigh) == highest);
  CHECK(priority_of(StreamPriority::kNormal) == lowest);
}

TEST_CASE("memory of the device is zeroed on a stream that is waited for") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  const CudaDevice device(0, kNoKernels);
  const auto compute = device.make_stream({.name = "compute"});
  const Buffer memory = device.allocate(32, MemoryKind::kDevice);
  const Buffer pinned = device.allocate(32, MemoryKind::kPinned);
  std::vector<float> values(8, 1);
  compute->read(values.data(), memory.data(), 32);
  CHECK(values == std::vector<float>(8, 0));
  CHECK(floats(pinned)[7] == 0);
}

// LibTorch checks the last error after its launches, and would treat an error of the engine as its
// own.
TEST_CASE("an event that is not reached yet leaves no error behind") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  const CudaDevice device(0, kNoKernels);
  const auto compute = device.make_stream({.name = "compute"});
  const Buffer memory = device.allocate(256, MemoryKind::kDevice);
  Event done = device.make_event();
  for (int i = 0; i < 3; ++i) {
    samples::launch_fill(floats(memory), 2, 64, cuda_stream(*compute).handle());
  }
  compute->record(done);
  CHECK_FALSE(done.reached());
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("each call that fails is an error that names it, and the device can be left") {
  int64_t calls = 0;
  const auto step = [](SimulatedGpu& gpu) {
    const CudaDevice device(0, kNoKernels);
    const Buffer memory = device.allocate(256, MemoryKind::kDevice);
    const Buffer pinned = device.allocate(256, MemoryKind::kPinned);
    const auto gather = device.make_stream({.name = "gather"});
    const auto compute = device.make_stream({.name = "compute"});
    Event gathered = device.make_event();
    gather->record(gathered);
    compute->wait(gathered);
    std::vector<float> values(64);
    compute->read(values.data(), memory.data(), 256);
    gathered.synchronize();
    gather->synchronize();
    static_cast<void>(gathered.reached());
    return gpu.all_calls();
  };
  {
    SimulatedGpu gpu;
    calls = step(gpu);
  }
  CHECK(calls > 15);
  for (const cudaError_t code : {cudaErrorUnknown, cudaErrorIllegalAddress}) {
    for (int64_t n = 1; n <= calls; ++n) {
      CAPTURE(n);
      SimulatedGpu gpu;
      gpu.fail_any(n, code);
      CHECK_THROWS_WITH_AS(step(gpu), doctest::Contains(cudaGetErrorName(code)), DeviceError);
      CHECK(gpu.take_reports().empty());
    }
  }
}

TEST_CASE("an error of an earlier kernel says so, whichever call it comes out of") {
  const auto failure = [](cudaError_t code) -> std::string {
    SimulatedGpu gpu;
    const CudaDevice device(0, kNoKernels);
    const auto compute = device.make_stream({.name = "compute"});
    gpu.fail("cudaEventRecord", 1, code);
    Event done = device.make_event();
    try {
      compute->record(done);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  };
  const std::string lost = "this process cannot use the device any more";
  for (const cudaError_t code :
       {cudaErrorHardwareStackError, cudaErrorIllegalAddress, cudaErrorIllegalInstruction,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure,
        cudaErrorLaunchTimeout, cudaErrorMisalignedAddress}) {
    CHECK(failure(code) ==
          std::string("cudaEventRecord failed: ") + cudaGetErrorString(code) + " (" +
              cudaGetErrorName(code) +
              "); hint: set CUDA_LAUNCH_BLOCKING=1 to see the kernel: an earlier one failed; " +
              lost);
  }
  CHECK(failure(cudaErrorAssert) ==
        "cudaEventRecord failed: device-side assert triggered (cudaErrorAssert); hint: check "
        "labels and token ids: an assertion of an earlier kernel failed, in LibTorch usually for "
        "an index out of range; set CUDA_LAUNCH_BLOCKING=1 to see the kernel; " +
            lost);
  for (const cudaError_t code :
       {cudaErrorContained, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable}) {
    CHECK(failure(code).find("hint: see nvidia-smi -q") != std::string::npos);
  }
  struct Hinted {
    cudaError_t code;
    std::string_view words;
  };
  for (const auto& [code, words] :
       {Hinted{cudaErrorUnsupportedPtxVersion, "update the NVIDIA driver"},
        Hinted{cudaErrorDevicesUnavailable, "nvidia-smi -c DEFAULT"},
        Hinted{cudaErrorSystemNotReady, "nvidia-fabricmanager"},
        Hinted{cudaErrorSystemDriverMismatch, "reboot"},
        Hinted{cudaErrorCompatNotSupportedOnDevice, "LD_LIBRARY_PATH"}}) {
    CHECK(failure(code).find(words) != std::string::npos);
  }
  CHECK(failure(cudaErrorUnknown).find("hint") == std::string::npos);
}
