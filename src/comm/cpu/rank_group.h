// The ranks of one communicator and the channel of the control segment that they use.
#pragma once

#include <vector>

#include "comm/job/job_member.h"

namespace fsdp {

// The ranks of one communicator.
struct RankGroup {
  int channel = 0;
  std::vector<int> ranks;  // ranks of the job, in the communicator's order
  int rank = 0;            // index of this rank in `ranks`

  int size() const { return static_cast<int>(ranks.size()); }
};

// Returns the group of all ranks of the job, on a channel that only this group uses.
RankGroup group_of_all(const JobMember& member, Channel channel);
// Returns the group of some ranks of the job, including this rank. Other groups may use the same
// channel. `ranks` must have the same order on all ranks of the group.
RankGroup group_of(const JobMember& member, Channel channel, std::vector<int> ranks);
// Marks the channel with this rank's group, so that peers can distinguish groups on the channel.
void mark_group(const JobMember& member, const RankGroup& group);

}  // namespace fsdp
