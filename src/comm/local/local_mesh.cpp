#include "comm/local/local_mesh.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <utility>

#include "comm/job/segment_control_plane.h"
#include "comm/local/device_communicator.h"
#include "comm/local/local_communicator.h"

namespace fsdp {
namespace {

// Makes the membership of each rank. When the last membership is destroyed, it frees the control
// segment.
std::vector<std::shared_ptr<const JobMember>> join_all(int world_size, const MeshOptions& options) {
  const auto memory =
      std::make_shared<Buffer>(allocate_host(ControlSegment::bytes_for(world_size)));
  const ControlSegment control(memory->data(), world_size);
  control.header().world_size = world_size;
  std::vector<std::shared_ptr<const JobMember>> members;
  for (int rank = 0; rank < world_size; ++rank) {
    // The ranks are marked as present before any of their threads runs, so no rank ever finds
    // another one absent.
    control.status(rank).state.store(RankState::kPresent);
    members.push_back(std::make_shared<const JobMember>(
        JobMember::Parts{.memory = memory,
                         .control = control,
                         .rank = rank,
                         .kind = RankKind::kThread,
                         .timeout = options.timeout,
                         .on_slow_rank = slow_listener(options)}));
  }
  return members;
}

using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(std::shared_ptr<const JobMember>, RankGroup)>;

// Returns a factory of communicators on one device. The first rank of a group makes the state that
// the group shares.
MakeCommunicator on_device(const Device& device) {
  // The key consists of the channel and the first rank of a group. One thread makes the parts of
  // all ranks, so no lock is needed.
  using Meetings = std::map<std::pair<int, int>, std::shared_ptr<DeviceMeeting>>;
  return [&device, meetings = std::make_shared<Meetings>()](std::shared_ptr<const JobMember> member,
                                                            RankGroup group) {
    std::shared_ptr<DeviceMeeting>& meeting = (*meetings)[{group.channel, group.ranks.front()}];
    if (!meeting) meeting = DeviceCommunicator::make_meeting(group.size(), device);
    return std::make_unique<DeviceCommunicator>(std::move(member), std::move(group), meeting,
                                                device);
  };
}

std::unique_ptr<Communicator> on_host(std::shared_ptr<const JobMember> member, RankGroup group) {
  return std::make_unique<LocalCommunicator>(std::move(member), std::move(group));
}

}  // namespace

std::vector<MeshParts> local_mesh(int world_size, const MeshOptions& options,
                                  const Device* device) {
  if (world_size < 1) {
    throw InvalidArgument({.what = fmt::format("world_size is {}, expected 1 or more", world_size),
                           .hint = "pass the number of ranks"});
  }
  const MakeCommunicator make_on_device =
      device == nullptr ? MakeCommunicator(on_host) : on_device(*device);
  // All threads are on one host, so the default group is the world.
  const MeshShape shape = shape_of(options, world_size, world_size);
  std::vector<MeshParts> meshes;
  for (const auto& member : join_all(world_size, options)) {
    const auto make = [&](RankGroup group) { return make_on_device(member, std::move(group)); };
    const auto make_axis = [&](Axis axis, Channel gather, Channel reduce) {
      const std::vector<int> ranks = shape.ranks(axis, member->rank());
      return AxisCommunicators{.gather = make(group_of(*member, gather, ranks)),
                               .reduce = make(group_of(*member, reduce, ranks))};
    };
    // Control values are in host memory, even if the ranks compute on a device.
    auto control = on_host(member, group_of_all(*member, Channel::kControl));
    auto plane = std::make_unique<SegmentControlPlane>(member, *control);
    meshes.push_back(
        {.device = device == nullptr ? &cpu_device() : device,
         .control_plane = std::move(plane),
         .ranks_are_threads = world_size > 1,
         .shares_device = device != nullptr && world_size > 1,
         .topology = {.host = host_name(),
                      .local_rank = member->rank(),
                      .local_world_size = world_size},
         .control = std::move(control),
         .modules = device == nullptr ? nullptr : make(group_of_all(*member, Channel::kModules)),
         .shape = shape,
         .world = {.gather = make(group_of_all(*member, Channel::kGather)),
                   .reduce = make(group_of_all(*member, Channel::kReduce))},
         .on_event = options.on_event});
    if (!shape.has_two_axes()) continue;
    meshes.back().shard = make_axis(Axis::kShard, Channel::kShardGather, Channel::kShardReduce);
    meshes.back().replicate =
        make_axis(Axis::kReplicate, Channel::kReplicateGather, Channel::kReplicateReduce);
  }
  return meshes;
}

}  // namespace fsdp
