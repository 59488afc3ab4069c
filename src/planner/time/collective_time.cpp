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
  double seconds = 0;
  if (group.hosts == 1) {
    seconds = bytes / rates.host.bytes;
  } else if (group.by_network) {
    const auto away =
        static_cast<double>(bytes_to_other_hosts(operation, parts, group.ranks, group.hosts));
    seconds = bytes / rates.host.bytes + away * group.ranks_of_host / rates.net.bytes;
  } else {
    const int members = group.ranks / group.hosts;
    const double net = rates.net.bytes * members / group.ranks_of_host;
    seconds = bytes / (members == 1 ? net : std::min(rates.host.bytes, net));
  }
  return {.latency_ns = rings * latency, .transfer_ns = kNanoseconds * seconds};
}

}  // namespace fsdp
