// Computes the time of a collective on a simulated link.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::testing {

// A link that is slower than the memory through which ranks of one process communicate. Each
// collective occupies its stream for at least latency + bytes / rate, counted from the time when
// all ranks' streams have reached it. Compute continues meanwhile, and results do not change.
// ring_bytes defines the bytes. If rate and latency are zero, the link adds no delay.
struct Wire {
  double gigabytes_per_second = 0;       // 10^9 bytes, for each rank; 0: unlimited
  std::chrono::microseconds latency{0};  // for each collective
};

// Returns true if the link adds no delay.
bool is_unlimited(const Wire& wire);
// Checks the link. Errors: InvalidArgument if the rate or the latency is negative, infinite or not
// a number.
void require_possible(const Wire& wire);

// Returns the nanoseconds from the arrival of the last rank to the end of the collective, rounded
// up. Errors: InvalidArgument if this is more than a minute, because a waiting rank cannot be
// notified of a failure.
int64_t wire_ns(const Wire& wire, int64_t bytes);

}  // namespace fsdp::testing
