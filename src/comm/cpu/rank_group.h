// The ranks of one communicator and the channel of the control segment on which they meet.
#pragma once

#include <vector>

#include "comm/cpu/job_member.h"

namespace fsdp {

struct RankGroup {
  int channel = 0;
  std::vector<int> ranks;  // of the job, in the communicator's order
  int rank = 0;            // this one's place among them

  int size() const { return static_cast<int>(ranks.size()); }
};

// All ranks of the job, on a channel of theirs.
RankGroup group_of_all(const JobMember& member, Channel channel);
// The rank alone: it waits for nobody.
RankGroup group_of_one(const JobMember& member);

}  // namespace fsdp
