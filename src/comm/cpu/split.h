// Agreement of a communicator's ranks on the groups into which it is split.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/job/job_member.h"

namespace fsdp {

// One rank's arguments of a split. Plain int64_t, which ranks gather.
struct SplitWish {
  int64_t color;
  int64_t key;
  int64_t channels_taken;
};
// A collective that returns the wishes of all ranks of a communicator, in its order.
using ExchangeWishes = std::function<std::vector<SplitWish>(const SplitWish& mine)>;

// Exchanges the wishes over `parent`, in host memory.
std::vector<SplitWish> exchange_wishes(Communicator& parent, const SplitWish& mine);

// Returns the group of this rank: the ranks that pass the same color, by key, then by their rank in
// `parent`, the group of the communicator that is split. Its channel is new to every rank of
// `parent`, and marked as this group's.
// Requires: those of Communicator::split.
// Errors: InvalidArgument for a negative color; DeviceError, on all ranks, if the job has no
//   channel left.
RankGroup agree_on_split(const JobMember& member, const RankGroup& parent,
                         const ExchangeWishes& exchange, int color, int key);

}  // namespace fsdp
