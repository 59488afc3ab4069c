#include "simulator/cuda/call_rules.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <span>

#include "simulator/cuda/simulation.h"

namespace fsdp::testing::sim {
namespace {

constexpr std::string_view kOfHost[] = {"cudaSetDevice", "cudaGetDevice", "cudaGetDeviceCount",
                                        "cudaRuntimeGetVersion", "cudaDriverGetVersion"};
// The calls that make no context. The calls of kOfHost make no context either.
constexpr std::string_view kWithoutContext[] = {
    "cudaDeviceGetAttribute",           "cudaDeviceGetPCIBusId",
    "cudaGetDeviceProperties",          "cudaDeviceCanAccessPeer",
    "cudaGetDriverEntryPointByVersion", "cudaThreadExchangeStreamCaptureMode"};
constexpr std::string_view kUnsafe[] = {"cudaMalloc",
                                        "cudaMallocHost",
                                        "cudaHostAlloc",
                                        "cudaFree",
                                        "cudaFreeHost",
                                        "cudaEventQuery",
                                        "cudaEventSynchronize",
                                        "cudaStreamQuery",
                                        "cudaStreamSynchronize",
                                        "cudaMemcpy",
                                        "cudaMemset",
                                        "cudaDeviceSynchronize"};
constexpr std::string_view kLaunches[] = {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"};
constexpr std::string_view kOfEvents[] = {"cudaEventRecord", "cudaEventQuery",
                                          "cudaStreamWaitEvent"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

uint64_t cost_of(const HostCosts& costs, std::string_view name) {
  if (is_one_of(kLaunches, name)) return costs.launch_ns;
  return is_one_of(kOfEvents, name) ? costs.event_ns : 0;
}

bool is_of_host(std::string_view name) { return is_one_of(kOfHost, name); }

bool needs_context(std::string_view name) {
  return !is_of_host(name) && !is_one_of(kWithoutContext, name);
}

bool is_unsafe_in_captures(std::string_view name) { return is_one_of(kUnsafe, name); }

}  // namespace fsdp::testing::sim

// Replaces the C library's function in the test program, so that a sleep also advances the clock of
// the simulated host.
extern "C" int nanosleep(const timespec* asked, timespec* left) {
  using namespace fsdp::testing::sim;
  {
    const std::lock_guard lock(runtime_mutex());
    Simulation* const simulation = current_simulation();
    const uint64_t more = simulation == nullptr ? 0 : simulation->options().host_costs.sleep_ns;
    if (more > 0) {
      simulation->spend(static_cast<uint64_t>(asked->tv_sec) * 1'000'000'000 +
                        static_cast<uint64_t>(asked->tv_nsec) + more);
    }
  }
  return static_cast<int>(syscall(SYS_nanosleep, asked, left));
}
