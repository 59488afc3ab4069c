#include "comm/ring_bytes.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

namespace fsdp {
namespace {

// Returns ring_bytes for a tensor of 48 bytes in two parts. Operations differ in the meaning of a
// part's number of elements.
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
  CHECK(ring_bytes(Operation::kAllReduce, {&part, 1}, 3) == 7);  // 20 / 3, rounded up
  CHECK(ring_bytes(Operation::kAllReduce, {&part, 1}, 2) == 5);
  CHECK(ring_bytes(Operation::kAllGather, {}, 3) == 0);
}

TEST_CASE("between hosts, a rank sends its share once to each other host") {
  const CollectivePart piece{.numel = 1000, .dtype = DType::kFloat32};  // of one rank
  const CollectivePart whole{.numel = 12'000, .dtype = DType::kFloat32};
  const CollectivePart small{.numel = 1, .dtype = DType::kFloat32};
  // 12 ranks on 3 hosts. The tensor has 48,000 bytes.
  CHECK(bytes_to_other_hosts(Operation::kAllGather, {&piece, 1}, 12, 3) == 8000);
  CHECK(bytes_to_other_hosts(Operation::kReduceScatter, {&piece, 1}, 12, 3) == 8000);
  CHECK(bytes_to_other_hosts(Operation::kAllReduce, {&whole, 1}, 12, 3) == 16'000);
  CHECK(bytes_to_other_hosts(Operation::kBroadcast, {&whole, 1}, 12, 3) == 8000);
  CHECK(bytes_to_other_hosts(Operation::kAllReduce, {&small, 1}, 12, 3) == 8);
  CHECK(bytes_to_other_hosts(Operation::kAllReduce, {&whole, 1}, 12, 1) == 0);
  CHECK(bytes_to_other_hosts(Operation::kBarrier, {}, 12, 3) == 0);
}

}  // namespace
}  // namespace fsdp
