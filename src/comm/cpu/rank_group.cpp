#include "comm/cpu/rank_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace fsdp {

RankGroup group_of_all(const JobMember& member, Channel channel) {
  RankGroup group{.channel = static_cast<int>(channel),
                  .ranks = std::vector<int>(member.size()),
                  .rank = member.rank()};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

RankGroup group_of(const JobMember& member, Channel channel, std::vector<int> ranks) {
  const auto place = std::ranges::find(ranks, member.rank()) - ranks.begin();
  RankGroup group{.channel = static_cast<int>(channel),
                  .ranks = std::move(ranks),
                  .rank = static_cast<int>(place)};
  mark_group(member, group);
  return group;
}

void mark_group(const JobMember& member, const RankGroup& group) {
  // The lowest rank identifies a group, because groups on a channel are disjoint. 1 is added
  // because 0 means no group.
  const int lowest = *std::ranges::min_element(group.ranks);
  member.control().endpoint(group.channel, member.rank()).group.store(lowest + 1);
}

}  // namespace fsdp
