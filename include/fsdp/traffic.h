// What a rank sends: collectives and bytes, by axis of the mesh.
#pragma once

#include <fsdp/mesh.h>

#include <cstdint>

namespace fsdp {

// Over the ranks of an axis, where these stand in a ring: of S bytes over n ranks (n - 1) / n · S
// in a gather and in a reduce_scatter, twice that in an all_reduce.
struct AxisTraffic {
  int64_t gathers = 0;  // collectives, as reductions
  int64_t gathered_bytes = 0;
  int64_t reductions = 0;  // of gradients
  int64_t reduced_bytes = 0;
  bool operator==(const AxisTraffic&) const = default;
};
AxisTraffic operator-(const AxisTraffic& later, const AxisTraffic& earlier);

struct Traffic {
  AxisTraffic world;        // over all ranks
  AxisTraffic inside;       // over those of a group; none where there is one group
  AxisTraffic across;       // over those with the same number in all groups
  int64_t other_bytes = 0;  // of norms, over all ranks; of what modules sum (SyncBatchNorm) none

  AxisTraffic& along(Axis axis);
  int64_t total_bytes() const;
  bool operator==(const Traffic&) const = default;
};
Traffic operator-(const Traffic& later, const Traffic& earlier);

}  // namespace fsdp
