#include "fsdp/traffic.h"

namespace fsdp {

AxisTraffic operator-(const AxisTraffic& later, const AxisTraffic& earlier) {
  return {.gathers = later.gathers - earlier.gathers,
          .gathered_bytes = later.gathered_bytes - earlier.gathered_bytes,
          .reductions = later.reductions - earlier.reductions,
          .reduced_bytes = later.reduced_bytes - earlier.reduced_bytes};
}

AxisTraffic& Traffic::along(Axis axis) {
  switch (axis) {
    case Axis::kShard:
      return inside;
    case Axis::kReplicate:
      return across;
    case Axis::kWorld:
      break;
  }
  return world;
}

int64_t Traffic::total_bytes() const {
  int64_t bytes = other_bytes;
  for (const AxisTraffic& axis : {world, inside, across}) {
    bytes += axis.gathered_bytes + axis.reduced_bytes;
  }
  return bytes;
}

Traffic operator-(const Traffic& later, const Traffic& earlier) {
  return {.world = later.world - earlier.world,
          .inside = later.inside - earlier.inside,
          .across = later.across - earlier.across,
          .other_bytes = later.other_bytes - earlier.other_bytes,
          .to_other_hosts = later.to_other_hosts - earlier.to_other_hosts};
}

}  // namespace fsdp
