#include "comm/wire/wire_time.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {
namespace {

using std::chrono::microseconds;

// A tensor of 48 bytes in two parts, as each operation counts its elements.
int64_t bytes_of(Operation operation, int size) {
  const bool in_pieces =
      operation == Operation::kAllGather || operation == Operation::kReduceScatter;
  const int64_t pieces = in_pieces ? size : 1;
  const std::array<CollectivePart, 2> parts{
      CollectivePart{.numel = 24 / 2 / pieces, .dtype = DType::kBFloat16},
      CollectivePart{.numel = 24 / pieces, .dtype = DType::kUInt8}};
  return ring_bytes(operation, parts, size);
}

TEST_CASE("what a rank sends of 48 bytes is what the ring algorithms send, on 1 to 4 ranks") {
  using Bytes = std::vector<int64_t>;
  const auto of = [](Operation operation) {
    Bytes bytes;
    for (int size = 1; size <= 4; ++size) bytes.push_back(bytes_of(operation, size));
    return bytes;
  };
  CHECK(of(Operation::kAllGather) == Bytes{0, 24, 32, 36});
  CHECK(of(Operation::kReduceScatter) == Bytes{0, 24, 32, 36});
  CHECK(of(Operation::kAllReduce) == Bytes{0, 48, 64, 72});
  CHECK(of(Operation::kBroadcast) == Bytes{0, 48, 48, 48});
  CHECK(of(Operation::kBarrier) == Bytes{0, 0, 0, 0});
}

TEST_CASE("a tensor that no ring cuts evenly counts a byte more") {
  const CollectivePart part{.numel = 5, .dtype = DType::kUInt8};
  CHECK(ring_bytes(Operation::kAllReduce, {&part, 1}, 3) == 7);  // 20 / 3
  CHECK(ring_bytes(Operation::kAllReduce, {&part, 1}, 2) == 5);
  CHECK(ring_bytes(Operation::kAllGather, {}, 3) == 0);
}

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
                       "(MeshOptions::wire); hint: a minute is the most: a faster wire, or smaller "
                       "units",
                       InvalidArgument);
  CHECK_THROWS_AS(wire_ns({.gigabytes_per_second = 5e-324}, 1), InvalidArgument);
  CHECK_THROWS_AS(wire_ns({.latency = microseconds::max()}, 0), InvalidArgument);
}

TEST_CASE("a wire that cannot be is refused") {
  CHECK_NOTHROW(require_possible({}));
  CHECK_NOTHROW(require_possible({.gigabytes_per_second = 12.5, .latency = microseconds(3)}));
  CHECK_THROWS_WITH_AS(require_possible({.gigabytes_per_second = -1}),
                       "a wire of -1 GB/s and a latency of 0 us (MeshOptions::wire); hint: neither "
                       "is negative, and 0 is unlimited",
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
}  // namespace fsdp
