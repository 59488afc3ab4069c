// How the ranks of a communicator agree on the groups into which it is split.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/job/job_member.h"

namespace fsdp {

// What one rank says about a split.
struct SplitWish {
  int64_t color;
  int64_t key;
  int64_t channels_taken;
};
// The wishes of all ranks of a communicator, in its order. Collective over it.
using ExchangeWishes = std::function<std::vector<SplitWish>(const SplitWish& mine)>;

// Over the host's memory.
std::vector<SplitWish> exchange_wishes(Communicator& parent, const SplitWish& mine);

// The group of this rank: those that gave the same color, by key, then by their rank in `parent`,
// the group of the communicator that is split.
// Its channel is new to every rank of `parent`, and marked as this group's.
// Requires: Communicator::split's.
// Errors: InvalidArgument for a negative color; DeviceError, on all ranks, when the job has no
//   channel left.
RankGroup agree_on_split(const JobMember& member, const RankGroup& parent,
                         const ExchangeWishes& exchange, int color, int key);

}  // namespace fsdp
