#include "support/wire/wire_time.h"

#include <doctest/doctest.h>

#include <limits>

#include "fsdp/error.h"

namespace fsdp::testing {
namespace {

using std::chrono::microseconds;

TEST_CASE("a collective takes the latency and a nanosecond a byte and GB/s, rounded up") {
  CHECK(wire_ns({.gigabytes_per_second = 1}, 1000) == 1000);
  CHECK(wire_ns({.gigabytes_per_second = 0.25, .latency = microseconds(7)}, 1000) == 11'000);
  CHECK(wire_ns({.gigabytes_per_second = 3}, 1000) == 334);
  CHECK(wire_ns({.latency = microseconds(7)}, 1'000'000) == 7000);
  CHECK(wire_ns({.gigabytes_per_second = 3, .latency = microseconds(7)}, 0) == 7000);
  CHECK(wire_ns({}, 1'000'000) == 0);
}

TEST_CASE("a collective of more than a minute is refused with its time") {
  CHECK(wire_ns({.latency = std::chrono::minutes(1)}, 0) == 60'000'000'000);
  CHECK_THROWS_WITH_AS(wire_ns({.gigabytes_per_second = 1e-6}, 90'000),
                       "a collective of 90000 bytes on a wire of 1e-06 GB/s takes 90 s "
                       "(Wire); hint: a minute is the most: a faster wire, or smaller units",
                       InvalidArgument);
  CHECK_THROWS_AS(wire_ns({.gigabytes_per_second = 5e-324}, 1), InvalidArgument);
  CHECK_THROWS_AS(wire_ns({.latency = microseconds::max()}, 0), InvalidArgument);
}

TEST_CASE("a wire that cannot be is refused") {
  CHECK_NOTHROW(require_possible({}));
  CHECK_NOTHROW(require_possible({.gigabytes_per_second = 12.5, .latency = microseconds(3)}));
  CHECK_THROWS_WITH_AS(require_possible({.gigabytes_per_second = -1}),
                       "a wire of -1 GB/s and a latency of 0 us (Wire); hint: neither is negative, "
                       "and 0 is unlimited",
                       InvalidArgument);
  CHECK_THROWS_AS(require_possible({.latency = microseconds(-5)}), InvalidArgument);
  for (const double rate :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(require_possible({.gigabytes_per_second = rate}), InvalidArgument);
  }
  CHECK(is_unlimited({}));
  CHECK_FALSE(is_unlimited({.gigabytes_per_second = 1}));
  CHECK_FALSE(is_unlimited({.latency = microseconds(1)}));
}

}  // namespace
}  // namespace fsdp::testing
