// Computes the time of a collective on a simulated link.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::testing {

// A link slower than the memory that connects ranks of one process. Each collective occupies its
// stream for at least latency + bytes / rate, counted from when all ranks' streams have reached it;
// compute continues, and results are the same. Bytes are those of ring_bytes. Both zero: no delay.
struct Wire {
  double gigabytes_per_second = 0;       // 10^9 bytes, for each rank; 0: unlimited
  std::chrono::microseconds latency{0};  // for each collective
};

// Returns true if the link delays nothing.
bool is_unlimited(const Wire& wire);
// Checks the link. Errors: InvalidArgument for a rate or a latency that is negative, not a number
// or infinite.
void require_possible(const Wire& wire);

// Returns the nanoseconds from the arrival of all ranks to the end of the collective, rounded up.
// Errors: InvalidArgument for more than a minute, because a waiting rank cannot be notified of a
// failure meanwhile.
int64_t wire_ns(const Wire& wire, int64_t bytes);

}  // namespace fsdp::testing
