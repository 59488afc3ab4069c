#include "comm/cpu/rank_group.h"

#include <numeric>

namespace fsdp {

RankGroup group_of_all(const JobMember& member, Channel channel) {
  RankGroup group{.channel = static_cast<int>(channel),
                  .ranks = std::vector<int>(member.size()),
                  .rank = member.rank()};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

RankGroup group_of_one(const JobMember& member) { return {.ranks = {member.rank()}}; }

}  // namespace fsdp
