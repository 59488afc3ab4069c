#include "comm/hosts/hosts_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/hosts/hosts_communicator.h"
#include "comm/hosts/hosts_session.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp {
namespace {

constexpr size_t kNamedHosts = 8;  // hosts that a note names

// The order in which the communicators are made must be equal on all ranks, because ranks connect
// when they make the first communicator of a list of ranks.
void make_communicators(MeshParts& parts, const std::shared_ptr<HostsSession>& session) {
  const JobMember& member = session->member();
  const auto make_all = [&](Channel channel) {
    return std::make_unique<HostsCommunicator>(session, group_of_all(member, channel));
  };
  const auto make_axis = [&](Axis axis, Channel gather, Channel reduce) {
    const std::vector<int> ranks = parts.shape.ranks(axis, member.rank());
    return AxisCommunicators{
        .gather = std::make_unique<HostsCommunicator>(session, group_of(member, gather, ranks)),
        .reduce = std::make_unique<HostsCommunicator>(session, group_of(member, reduce, ranks))};
  };
  parts.world = {.gather = make_all(Channel::kGather), .reduce = make_all(Channel::kReduce)};
  parts.modules = make_all(Channel::kModules);
  if (!parts.shape.has_two_axes()) return;
  parts.shard = make_axis(Axis::kShard, Channel::kShardGather, Channel::kShardReduce);
  parts.replicate =
      make_axis(Axis::kReplicate, Channel::kReplicateGather, Channel::kReplicateReduce);
}

// Tells rank 0's listener by which addresses the hosts are connected.
void note_addresses(const MeshParts& parts, const std::vector<std::string>& hosts,
                    const std::string& address) {
  const std::vector<std::string> addresses =
      parts.control_plane->exchange({.label = "addresses of the hosts"}, address);
  if (parts.control_plane->rank() != 0 || !parts.on_event) return;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    std::string name = fmt::format("{} ({})", hosts[rank], addresses[rank]);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  const size_t more = names.size() - std::min(names.size(), kNamedHosts);
  names.resize(names.size() - more);
  parts.on_event(
      {.kind = MeshEvent::Kind::kNote,
       .text = {.what = fmt::format("{} ranks are connected by Gloo on {}{}", hosts.size(),
                                    fmt::join(names, ", "),
                                    more == 0 ? "" : fmt::format(" and {} more", more))}});
}

}  // namespace

MeshParts hosts_mesh(StoreRanks joined, OpenTransport open, const std::string& address,
                     const MeshOptions& options) {
  MeshParts& parts = joined.parts;
  try {
    std::vector<std::string> hosts;
    for (PlaceOfRank& place : joined.places) hosts.push_back(std::move(place.host));
    HostsSession::MakeInside make_inside;
    if (joined.host.memory) {
      make_inside = [member = joined.member,
                     host = std::make_shared<HostRanks>(std::move(joined.host))](RankGroup group) {
        return std::make_unique<ShmCommunicator>(member, std::move(group), host->memory,
                                                 host->heap);
      };
    }
    make_communicators(parts, std::make_shared<HostsSession>(
                                  HostsSession::Parts{.plane = *parts.control_plane,
                                                      .member = joined.member,
                                                      .hosts = hosts,
                                                      .make_inside = std::move(make_inside),
                                                      .transport = open(address),
                                                      .store = std::move(joined.store),
                                                      .timeout = options.timeout}));
    note_addresses(parts, hosts, address);
  } catch (const std::exception& error) {
    parts.control_plane->abort(error.what());
    throw;
  }
  return std::move(parts);
}

}  // namespace fsdp
