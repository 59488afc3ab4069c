// Agreement of a communicator's ranks on the groups into which the communicator is split.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/job/job_member.h"

namespace fsdp {

// One rank's arguments of a split. All members are int64_t, because ranks gather them.
struct SplitWish {
  int64_t color;
  int64_t key;
  int64_t channels_taken;
};
// A collective that gathers the split arguments of all ranks of a communicator, in rank order.
using ExchangeWishes = std::function<std::vector<SplitWish>(const SplitWish& mine)>;

// Gathers the split arguments of all ranks of `parent`, in host memory.
std::vector<SplitWish> exchange_wishes(Communicator& parent, const SplitWish& mine);

// Returns this rank's group: the ranks that pass the same color. They are ordered by key, then by
// their rank in `parent`, which is the group of the communicator that is split. No rank of `parent`
// has used the group's channel before. The channel is marked as this group's.
// Requires: as Communicator::split.
// Errors: InvalidArgument for a negative color. DeviceError, on all ranks, if the job has no
//   channel left.
RankGroup agree_on_split(const JobMember& member, const RankGroup& parent,
                         const ExchangeWishes& exchange, int color, int key);

}  // namespace fsdp
