// Tests the simulated CUDA runtime: it runs nvcc's kernels on the host, and finds errors in them.
#include <vector>

#include "simulator/tests/gpu_arrays.h"
#include "simulator/tests/kernels/sim_kernels.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

// Checks that a report names the kernel, and that the device is lost.
void check_kernel_is_refused(samples::Bug bug, const std::vector<std::string>& parts) {
  for (const uint32_t seed : {0U, 1U, 2U}) {
    SimulatedGpu gpu({.seed = seed});
    cudaStream_t stream = make_stream(gpu, "compute");
    float* const from = make_floats(128);
    float* const to = make_floats(128);
    gpu.name_memory(from, "input");
    gpu.name_memory(to, "output");
    require(upload(from, std::vector<float>(128, 1), stream));
    samples::launch_mirror(to, from, bug, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    check_one_report(gpu, {"mirror #1 on compute: ", parts.at(0), parts.at(1)});
  }
}

}  // namespace

TEST_CASE("nvcc's kernels run on the host, in order with copies, under every schedule") {
  for (const Schedule schedule : kAllSchedules) {
    for (const uint32_t seed : {0U, 1U, 2U, 3U}) {
      SimulatedGpu gpu({.seed = seed, .schedule = schedule});
      cudaStream_t stream = make_stream(gpu, "compute");
      float* const x = make_floats(1000);
      samples::launch_fill(x, 3, 1000, stream);
      samples::launch_add(x, x, 2, 1000, stream);
      CHECK(download(x, 1000, stream) == std::vector<float>(1000, 5));
      std::vector<float> ramp, mirrored(128);
      for (int i = 0; i < 128; ++i) ramp.push_back(static_cast<float>(i));
      for (int i = 0; i < 128; ++i) mirrored[i] = static_cast<float>(i / 64 * 64 + 63 - i % 64);
      float* const from = make_floats(128);
      require(upload(from, ramp, stream));
      samples::launch_mirror(x, from, samples::Bug::kNone, stream);
      CHECK(download(x, 128, stream) == mirrored);
      CHECK(gpu.launches().size() == 3);
      CHECK(gpu.launches().at(0).kernel == "fill<float>");
      CHECK(gpu.launches().at(1).report.loads == 1000);
    }
  }
}

TEST_CASE("a launch by configuration is a launch, and kernels tell what they need") {
  SimulatedGpu gpu;
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(64);
  samples::launch_fill_by_configuration(x, 2, 64, stream);
  CHECK(download(x, 64, stream) == std::vector<float>(64, 2));
  CHECK(gpu.calls("cudaLaunchKernel") == 1);
  cudaFuncAttributes attributes{};
  CHECK(samples::attributes_of_add(&attributes) == cudaSuccess);
  CHECK(attributes.maxThreadsPerBlock == 1024);
  CHECK(attributes.ptxVersion == 80);
}

TEST_CASE("what a kernel does wrong is reported with its place, whatever the order of blocks") {
  using samples::Bug;
  check_kernel_is_refused(Bug::kNoBarrier,
                          {"of shared memory, which nobody has written", "ld.shared"});
  check_kernel_is_refused(Bug::kNoSecondBarrier, {"a race: it ", " of shared memory"});
  check_kernel_is_refused(Bug::kOverTheEnd,
                          {"outside of device memory, 0 bytes behind output", "thread 63"});
  check_kernel_is_refused(Bug::kMisaligned, {"a misaligned access of 16 bytes", "in _Z"});
  check_kernel_is_refused(Bug::kCrossBlock, {"a race: it writes byte 0 of output", "of block "});
  check_kernel_is_refused(Bug::kDivergentShuffle, {"lanes ffffffff are asked for", "shfl.sync"});
  check_kernel_is_refused(Bug::kUndefined, {"of output, which nobody has written", "ld.global"});
}

TEST_CASE("launches that cannot be are refused at once, and work goes on") {
  SimulatedGpu gpu;
  cudaStream_t stream = make_stream(gpu, "compute");
  float* const x = make_floats(32);
  samples::launch_fill(x, 1, 0, stream);  // a grid without blocks
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
  check_one_report(gpu, {"fill<float> with a grid of (0, 1, 1)"});
  samples::launch_sized_by_launch(x, stream);
  CHECK(cudaGetLastError() == cudaErrorInvalidDeviceFunction);
  check_one_report(gpu, {"memory of the launch's size"});
  samples::launch_with_variable(x, stream);
  CHECK(cudaGetLastError() == cudaErrorInvalidDeviceFunction);
  check_one_report(gpu, {"unknown directive '.global", "table"});
  samples::launch_compressed(x, stream);
  CHECK(cudaGetLastError() == cudaErrorInvalidDeviceFunction);
  check_one_report(gpu, {"compressed PTX; compile with --compress-mode=none"});
  cudaLaunchAttribute attribute{};
  CHECK(samples::launch_fill_with(&attribute, x, 1, 32, stream) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  check_one_report(gpu, {"cudaLaunchKernel: a launch with 1 attributes, which are not simulated"});
  const int no_kernel = 0;
  CHECK(cudaLaunchKernel(&no_kernel, dim3(1), dim3(1), nullptr, 0, stream) ==
        cudaErrorInvalidDeviceFunction);
  CHECK(cudaGetLastError() == cudaErrorInvalidDeviceFunction);
  check_one_report(gpu, {"no kernel was registered for the function at 0x"});
  CHECK(cudaLaunchHostFunc(
            stream, [](void*) {}, nullptr) == cudaErrorNotSupported);
  check_one_report(gpu, {"cudaLaunchHostFunc: a host function runs on a thread of the driver"});
  samples::launch_fill(x, 1, 32, stream);
  CHECK(download(x, 32, stream) == std::vector<float>(32, 1));
}

TEST_CASE("of a launch that is too long the first and last blocks run, over sparse memory") {
  SimulatedGpu gpu;
  gpu.run_only_edges(2);
  cudaStream_t stream = make_stream(gpu, "compute");
  const int64_t numel = (int64_t{1} << 33) + 7;
  auto* const x = static_cast<float*>(gpu.sparse_memory(numel * 4));
  samples::launch_fill(x, 1, numel, stream);
  require(cudaStreamSynchronize(stream));
  CHECK(gpu.launches().at(0).report.stores == 3 * 64 + 7);
  CHECK(x[0] == 1);
  CHECK(x[127] == 1);
  CHECK(x[128] == 0);
  CHECK(x[numel - 1] == 1);
  CHECK(x[numel - 8 - 64] == 0);
  gpu.only_read(x);
  samples::launch_fill(x, 2, numel, stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  check_one_report(gpu, {"a write to sparse memory of ", ", which may only be read, "});
  CHECK(x[0] == 1);
}
