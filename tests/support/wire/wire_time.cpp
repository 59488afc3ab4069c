#include "support/wire/wire_time.h"

#include <fmt/format.h>

#include <cmath>

#include "fsdp/error.h"

namespace fsdp::testing {
namespace {

constexpr std::chrono::nanoseconds kLongest = std::chrono::minutes(1);

}  // namespace

bool is_unlimited(const Wire& wire) {
  return wire.gigabytes_per_second == 0 && wire.latency.count() == 0;
}

void require_possible(const Wire& wire) {
  const bool possible = std::isfinite(wire.gigabytes_per_second) &&
                        wire.gigabytes_per_second >= 0 && wire.latency.count() >= 0;
  if (possible) return;
  throw InvalidArgument({.what = fmt::format("a wire of {} GB/s and a latency of {} us",
                                             wire.gigabytes_per_second, wire.latency.count()),
                         .where = "Wire",
                         .hint = "neither is negative, and 0 is unlimited"});
}

int64_t wire_ns(const Wire& wire, int64_t bytes) {
  // A rate of 1 GB/s is one byte per nanosecond.
  const double travel = wire.gigabytes_per_second == 0
                            ? 0
                            : std::ceil(static_cast<double>(bytes) / wire.gigabytes_per_second);
  const double latency = 1e3 * static_cast<double>(wire.latency.count());
  if (travel + latency > static_cast<double>(kLongest.count())) {
    throw InvalidArgument(
        {.what = fmt::format("a collective of {} bytes on a wire of {} GB/s takes {:.3g} s", bytes,
                             wire.gigabytes_per_second, (travel + latency) * 1e-9),
         .where = "Wire",
         .hint = "a minute is the most: a faster wire, or smaller units"});
  }
  return static_cast<int64_t>(travel + latency);
}

}  // namespace fsdp::testing
