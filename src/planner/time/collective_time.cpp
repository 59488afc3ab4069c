#include "planner/time/collective_time.h"

#include <algorithm>

#include "comm/ring_bytes.h"

namespace fsdp {
namespace {

// Requires: `times` is not empty.
double time_of(const std::vector<SizeTime>& times, double bytes) {
  const auto above = std::ranges::lower_bound(times, bytes, {}, &SizeTime::bytes);
  if (above == times.begin()) return times.front().ns;
  if (above == times.end()) return times.back().ns * bytes / times.back().bytes;
  const SizeTime &low = above[-1], &high = *above;
  return low.ns + (high.ns - low.ns) * (bytes - low.bytes) / (high.bytes - low.bytes);
}

CollectiveTime measured_time(const LinkRates& link, Operation operation, double bytes) {
  const double half = bytes / 2;
  const double ns =
      operation == Operation::kAllReduce
          ? time_of(link.reductions, half) + time_of(link.gathers, half)
          : time_of(traits_of(operation).reduces ? link.reductions : link.gathers, bytes);
  return {.transfer_ns = ns, .shares_wire = false, .cores = link.core};
}

}  // namespace

CollectiveTime collective_time(const Rates& rates, const TimedGroup& group, Operation operation,
                               std::span<const CollectivePart> parts) {
  constexpr double kNanoseconds = 1e9;
  if (group.ranks == 1) return {};
  const auto bytes = static_cast<double>(ring_bytes(operation, parts, group.ranks));
  if (group.hosts == 1 && !rates.host.gathers.empty()) {
    return measured_time(rates.host, operation, bytes);
  }
  if (operation == Operation::kBarrier) return {};
  const int rings = operation == Operation::kAllReduce ? 2 : 1;
  const double latency = rates.base_ns + (group.ranks - group.hosts) * rates.host.step_ns +
                         (group.hosts - 1) * rates.net.step_ns;
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
