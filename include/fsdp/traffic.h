// The number of a rank's collectives, and the bytes that the rank sends in them, by axis of the
// mesh.
#pragma once

#include <fsdp/mesh.h>

#include <cstdint>

namespace fsdp {

// One rank's collectives over the ranks of an axis. Bytes are computed for a ring algorithm. For S
// bytes over n ranks, a rank sends (n - 1) / n · S in an all_gather or reduce_scatter, and twice
// this number in an all_reduce.
struct AxisTraffic {
  int64_t gathers = 0;  // number of collectives
  int64_t gathered_bytes = 0;
  int64_t reductions = 0;  // number of collectives on gradients
  int64_t reduced_bytes = 0;
  bool operator==(const AxisTraffic&) const = default;
};
AxisTraffic operator-(const AxisTraffic& later, const AxisTraffic& earlier);

struct Traffic {
  AxisTraffic world;        // over all ranks
  AxisTraffic inside;       // over the ranks of a group; zero if there is only one group
  AxisTraffic across;       // over ranks with the same number in their groups, one per group
  int64_t other_bytes = 0;  // all_reduces of norms, but not those of modules (SyncBatchNorm)
  // Bytes of the above that the rank sends to other hosts, for ranks on the CPUs of several hosts.
  // Data go once to each other host: for S bytes over H hosts, n ranks send (H - 1) / n · S each in
  // an all_gather or reduce_scatter. Over NCCL, which chooses the paths, it is 0.
  int64_t to_other_hosts = 0;

  AxisTraffic& along(Axis axis);
  int64_t total_bytes() const;
  bool operator==(const Traffic&) const = default;
};
Traffic operator-(const Traffic& later, const Traffic& earlier);

}  // namespace fsdp
