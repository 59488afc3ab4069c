// How the ranks of a communicator agree on the groups into which it is split.
#pragma once

#include "comm/communicator.h"
#include "comm/cpu/job_member.h"
#include "comm/cpu/rank_group.h"

namespace fsdp {

// The group of this rank: those that gave the same color, by key, then by their rank in `parent`.
// Its channel is new to every rank of `parent`, and marked as this group's.
// Requires: Communicator::split's; `ranks` are those of the job that `parent` has, in its order.
// Errors: InvalidArgument for a negative color; DeviceError, on all ranks, when the job has no
//   channel left.
RankGroup agree_on_split(Communicator& parent, const JobMember& member,
                         const std::vector<int>& ranks, int color, int key);

}  // namespace fsdp
