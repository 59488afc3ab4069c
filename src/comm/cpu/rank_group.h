// The ranks of one communicator and the channel of the control segment on which they meet.
#pragma once

#include <vector>

#include "comm/job/job_member.h"

namespace fsdp {

struct RankGroup {
  int channel = 0;
  std::vector<int> ranks;  // of the job, in the communicator's order
  int rank = 0;            // this one's place among them

  int size() const { return static_cast<int>(ranks.size()); }
};

// All ranks of the job, on a channel of theirs.
RankGroup group_of_all(const JobMember& member, Channel channel);
// Some ranks of the job, this one among them, on a channel that other groups use, too: the same
// order on all of them.
RankGroup group_of(const JobMember& member, Channel channel, std::vector<int> ranks);
// So that peers who look at the channel can tell this rank's group from others.
void mark_group(const JobMember& member, const RankGroup& group);

}  // namespace fsdp
