// Rules for calls of the CUDA runtime by name, and the host time that each call costs.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp::testing::sim {

// The costs of calls on the calling thread's clock ([Note: virtual time of streams]). By default
// they are 0.
struct HostCosts {
  uint64_t launch_ns = 0;      // a launch of a kernel, a copy or a set
  uint64_t event_ns = 0;       // a record, a wait or a query
  uint64_t collective_ns = 0;  // NCCL: from ncclGroupEnd until the launch
  uint64_t question_ns = 0;    // ncclCommGetAsyncError
  uint64_t sleep_ns = 0;       // a sleep of the thread; added to the requested time
};
// Typical costs. On Linux, a sleep costs 50 us of timer slack and the time to wake the thread.
inline constexpr HostCosts kUsualHost{.launch_ns = 4'000,
                                      .event_ns = 1'000,
                                      .collective_ns = 25'000,
                                      .question_ns = 100,
                                      .sleep_ns = 70'000};

// Returns the cost of a call in nanoseconds.
uint64_t cost_of(const HostCosts& costs, std::string_view name);

// Returns true if a thread may still make the call after its device is lost.
bool is_of_host(std::string_view name);
// Returns true if the call makes a context on the thread's current device when none exists.
bool needs_context(std::string_view name);
// Returns true if CUDA calls the function "potentially unsafe" while a graph is captured.
bool is_unsafe_in_captures(std::string_view name);

}  // namespace fsdp::testing::sim
