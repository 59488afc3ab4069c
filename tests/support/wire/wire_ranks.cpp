#include "support/wire/wire_ranks.h"

#include <map>
#include <memory>
#include <utility>

#include "comm/make_mesh.h"
#include "comm/mesh_state.h"
#include "support/wire/wire_communicator.h"

namespace fsdp::testing {
namespace {

// The shared marks of the groups. The key is the communicator's number and the first rank of the
// group.
using Meetings = std::map<std::pair<int, int>, std::shared_ptr<WireMeeting>>;

// Wraps the communicators of one rank.
void put_on_wire(MeshParts& parts, const Wire& wire, Meetings& meetings) {
  const int rank = parts.control_plane->rank();
  int number = 0;
  const auto put = [&](std::unique_ptr<Communicator>& communicator, Axis axis,
                       const Device& device) {
    ++number;
    if (!communicator || communicator->size() == 1) return;
    auto& meeting = meetings[{number, parts.shape.ranks(axis, rank).front()}];
    if (!meeting) meeting = std::make_shared<WireMeeting>(communicator->size(), device);
    communicator = std::make_unique<WireCommunicator>(std::move(communicator), wire, meeting);
  };
  put(parts.control, Axis::kWorld, *parts.host);
  put(parts.modules, Axis::kWorld, *parts.device);
  put(parts.world.gather, Axis::kWorld, *parts.device);
  put(parts.world.reduce, Axis::kWorld, *parts.device);
  put(parts.shard.gather, Axis::kShard, *parts.device);
  put(parts.shard.reduce, Axis::kShard, *parts.device);
  put(parts.replicate.gather, Axis::kReplicate, *parts.device);
  put(parts.replicate.reduce, Axis::kReplicate, *parts.device);
}

}  // namespace

void put_on_wire(std::vector<MeshParts>& ranks, const Wire& wire) {
  require_possible(wire);
  if (is_unlimited(wire)) return;
  Meetings meetings;
  for (MeshParts& parts : ranks) put_on_wire(parts, wire, meetings);
}

std::function<std::vector<WatchedRank>(int world, const MeshOptions& options)> ranks_on_wire(
    const Wire& wire) {
  return [wire](int world, const MeshOptions& options) {
    std::vector<MeshParts> parts = parts_of_threads(world, options);
    put_on_wire(parts, wire);
    std::vector<WatchedRank> ranks;
    for (MeshParts& each : parts) {
      ranks.push_back({nullptr, mesh_of(std::move(each))});
    }
    return ranks;
  };
}

}  // namespace fsdp::testing
