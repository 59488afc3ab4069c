#include "comm/cpu/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "comm/collective_checks.h"
#include "runtime/device.h"

namespace fsdp {
std::vector<SplitWish> exchange_wishes(Communicator& parent, const SplitWish& mine) {
  Stream& stream = cpu_device().compute_stream();
  std::vector<SplitWish> wishes(parent.size());
  const CollectivePart part{.send = &mine,
                            .recv = wishes.data(),
                            .numel = sizeof(SplitWish) / sizeof(int64_t),
                            .dtype = DType::kInt64};
  parent.all_gather({&part, 1}, {.label = "split"}, stream);
  return wishes;
}

RankGroup agree_on_split(const JobMember& member, const RankGroup& parent,
                         const ExchangeWishes& exchange, int color, int key) {
  require_color(color, "Communicator::split");
  RankStatus& status = member.control().status(member.rank());
  const std::vector<SplitWish> wishes = exchange({color, key, status.split_channels.load()});
  // Ranks may have used different numbers of channels in earlier splits. The split uses the first
  // channel that no rank has used. All groups of this split share the channel, because the groups
  // are disjoint.
  const auto taken = std::ranges::max(wishes, {}, &SplitWish::channels_taken).channels_taken;
  RankGroup group{.channel = kNamedChannels + static_cast<int>(taken)};
  if (group.channel >= kChannels) {
    // Every rank of the parent computes the number of the channel from the same gathered arguments.
    // So if one rank throws here, all do.
    throw DeviceError(
        {.what = fmt::format("a rank already has {} communicators from split, the maximum",
                             kChannels - kNamedChannels),
         .where = "Communicator::split",
         .hint = "split once and reuse the communicators"});
  }
  // The channel now counts as used on every rank of the parent, also in the other groups.
  status.split_channels.store(static_cast<uint32_t>(taken) + 1);

  std::vector<int> members;  // ranks of the parent
  for (int rank = 0; rank < parent.size(); ++rank) {
    if (wishes[rank].color == color) members.push_back(rank);
  }
  std::ranges::sort(members, {}, [&](int rank) { return std::tuple(wishes[rank].key, rank); });
  group.rank = static_cast<int>(std::ranges::find(members, parent.rank) - members.begin());
  for (const int rank : members) group.ranks.push_back(parent.ranks[rank]);
  // The channel is marked before any collective runs on it, so that peers never compare a rank of
  // another group.
  mark_group(member, group);
  return group;
}

}  // namespace fsdp
