// What a collective costs on a wire.
#pragma once

#include <chrono>
#include <cstdint>

namespace fsdp::testing {

// A wire that is slower than the memory through which ranks of one process reach each other. Each
// collective occupies its stream for at least latency + bytes / rate from when all ranks' streams
// have come to it; compute goes on, results are the same. Bytes are those of ring_bytes. Both zero:
// as fast as it is.
struct Wire {
  double gigabytes_per_second = 0;       // of 10^9 bytes, each rank's; 0: unlimited
  std::chrono::microseconds latency{0};  // of each collective
};

// It holds nothing back.
bool is_unlimited(const Wire& wire);
// Errors: InvalidArgument for a rate or a latency that is negative, not a number or infinite.
void require_possible(const Wire& wire);

// From when all ranks are there until the collective is over, in nanoseconds, rounded up.
// Errors: InvalidArgument for more than a minute: nobody who waits hears of a failure meanwhile.
int64_t wire_ns(const Wire& wire, int64_t bytes);

}  // namespace fsdp::testing
