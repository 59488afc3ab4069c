#include "planner/time/collective_time.h"

#include <algorithm>

#include "comm/ring_bytes.h"

namespace fsdp {

CollectiveTime collective_time(const Rates& rates, const TimedGroup& group, Operation operation,
                               std::span<const CollectivePart> parts) {
  constexpr double kNanoseconds = 1e9;
  if (group.ranks == 1 || operation == Operation::kBarrier) return {};
  const int rings = operation == Operation::kAllReduce ? 2 : 1;
  const double latency = rates.base_ns + (group.ranks - group.hosts) * rates.host.step_ns +
                         (group.hosts - 1) * rates.net.step_ns;
  const auto bytes = static_cast<double>(ring_bytes(operation, parts, group.ranks));
  double by_host = bytes / rates.host.bytes, by_net = 0, seconds = by_host;
  if (group.hosts > 1 && group.by_network) {
    const auto away =
        static_cast<double>(bytes_to_other_hosts(operation, parts, group.ranks, group.hosts));
    by_net = away * group.ranks_of_host / rates.net.bytes;
    seconds = by_host + by_net;
  } else if (group.hosts > 1) {
    const int members = group.ranks / group.hosts;
    by_net = bytes / (rates.net.bytes * members / group.ranks_of_host);
    if (members == 1) by_host = 0;
    seconds = std::max(by_host, by_net);
  }
  return {.latency_ns = rings * latency,
          .transfer_ns = kNanoseconds * seconds,
          .ring_steps = int64_t{rings} * (group.ranks - 1),
          .net_limits = by_net > by_host};
}

}  // namespace fsdp
