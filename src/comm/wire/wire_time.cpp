#include "comm/wire/wire_time.h"

#include <fmt/format.h>

#include <cmath>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr std::chrono::nanoseconds kLongest = std::chrono::minutes(1);

// Of the whole tensor, of which all_gather and reduce_scatter count one rank's piece.
int64_t tensor_bytes(Operation operation, std::span<const CollectivePart> parts, int size) {
  const bool in_pieces =
      operation == Operation::kAllGather || operation == Operation::kReduceScatter;
  int64_t bytes = 0;
  for (const CollectivePart& part : parts) bytes += part.numel * size_of(part.dtype);
  return in_pieces ? bytes * size : bytes;
}

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
                         .where = "MeshOptions::wire",
                         .hint = "neither is negative, and 0 is unlimited"});
}

int64_t ring_bytes(Operation operation, std::span<const CollectivePart> parts, int size) {
  if (size == 1) return 0;
  const int64_t bytes = tensor_bytes(operation, parts, size);
  switch (operation) {
    case Operation::kAllGather:
    case Operation::kReduceScatter:
      return bytes / size * (size - 1);
    case Operation::kAllReduce:
      return (2 * (size - 1) * bytes + size - 1) / size;
    case Operation::kBroadcast:
      return bytes;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

int64_t wire_ns(const Wire& wire, int64_t bytes) {
  // 1 GB/s is a byte a nanosecond.
  const double travel = wire.gigabytes_per_second == 0
                            ? 0
                            : std::ceil(static_cast<double>(bytes) / wire.gigabytes_per_second);
  const double latency = 1e3 * static_cast<double>(wire.latency.count());
  if (travel + latency > static_cast<double>(kLongest.count())) {
    throw InvalidArgument(
        {.what = fmt::format("a collective of {} bytes on a wire of {} GB/s takes {:.3g} s", bytes,
                             wire.gigabytes_per_second, (travel + latency) * 1e-9),
         .where = "MeshOptions::wire",
         .hint = "a minute is the most: a faster wire, or smaller units"});
  }
  return static_cast<int64_t>(travel + latency);
}

}  // namespace fsdp
