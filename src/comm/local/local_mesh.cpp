#include "comm/local/local_mesh.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <utility>

#include "comm/cpu/segment_control_plane.h"
#include "comm/local/device_communicator.h"
#include "comm/local/local_communicator.h"
#include "comm/wire/wire_communicator.h"
#include "comm/wire/wire_time.h"

namespace fsdp {
namespace {

// The membership of each rank; the last of them to go frees the control segment.
std::vector<std::shared_ptr<const JobMember>> join_all(int world_size, const MeshOptions& options) {
  const auto memory =
      std::make_shared<Buffer>(allocate_host(ControlSegment::bytes_for(world_size)));
  const ControlSegment control(memory->data(), world_size);
  control.header().world_size = world_size;
  std::vector<std::shared_ptr<const JobMember>> members;
  for (int rank = 0; rank < world_size; ++rank) {
    control.status(rank).state.store(RankState::kPresent);
    members.push_back(
        std::make_shared<const JobMember>(JobMember::Parts{.memory = memory,
                                                           .control = control,
                                                           .rank = rank,
                                                           .kind = RankKind::kThread,
                                                           .timeout = options.timeout,
                                                           .on_slow_rank = options.on_slow_rank}));
  }
  return members;
}

using MakeCommunicator =
    std::function<std::unique_ptr<Communicator>(std::shared_ptr<const JobMember>, RankGroup)>;

// One device's: the ranks of a channel meet in one place.
MakeCommunicator on_device(const Device& device, int world_size) {
  std::map<int, std::shared_ptr<DeviceMeeting>> meetings;
  for (const Channel channel : {Channel::kGather, Channel::kReduce, Channel::kModules}) {
    meetings[static_cast<int>(channel)] = DeviceCommunicator::make_meeting(world_size, device);
  }
  return [&device, meetings](std::shared_ptr<const JobMember> member, RankGroup group) {
    auto meeting = group.size() == 1 ? DeviceCommunicator::make_meeting(1, device)
                                     : meetings.at(group.channel);
    return std::make_unique<DeviceCommunicator>(std::move(member), std::move(group),
                                                std::move(meeting), device);
  };
}

// With each group of several ranks on a wire of its own.
MakeCommunicator on_wire(MakeCommunicator make, const Wire& wire, const Device& device) {
  if (is_unlimited(wire)) return make;
  using Meetings = std::map<int, std::shared_ptr<WireMeeting>>;
  return [make = std::move(make), wire, &device, meetings = std::make_shared<Meetings>()](
             std::shared_ptr<const JobMember> member,
             RankGroup group) -> std::unique_ptr<Communicator> {
    if (group.size() == 1) return make(std::move(member), std::move(group));
    std::shared_ptr<WireMeeting>& meeting = (*meetings)[group.channel];
    if (!meeting) meeting = std::make_shared<WireMeeting>(group.size(), device);
    return std::make_unique<WireCommunicator>(make(std::move(member), std::move(group)), wire,
                                              meeting);
  };
}

std::unique_ptr<Communicator> on_host(std::shared_ptr<const JobMember> member, RankGroup group) {
  return std::make_unique<LocalCommunicator>(std::move(member), std::move(group));
}

}  // namespace

std::vector<MeshParts> local_mesh(int world_size, const MeshOptions& options,
                                  const Device* device) {
  if (world_size < 1) {
    throw InvalidArgument(
        {.what = fmt::format("a mesh of {} ranks", world_size), .hint = "one rank is the least"});
  }
  if (options.ablate_communication) {
    throw InvalidArgument({.what = "ablate_communication with ranks that are threads",
                           .cause = "ranks of one process do not run apart from each other",
                           .hint = "start processes and use Mesh::from_env"});
  }
  require_possible(options.wire);
  const MakeCommunicator make_on_host = on_wire(on_host, options.wire, cpu_device());
  const MakeCommunicator make_on_device =
      device == nullptr ? make_on_host
                        : on_wire(on_device(*device, world_size), options.wire, *device);
  std::vector<MeshParts> meshes;
  for (const auto& member : join_all(world_size, options)) {
    const auto make = [&](RankGroup group) { return make_on_device(member, std::move(group)); };
    // What it carries lies in the host's memory.
    auto control = make_on_host(member, group_of_all(*member, Channel::kControl));
    auto plane = std::make_unique<SegmentControlPlane>(member, *control);
    meshes.push_back(
        {.device = device == nullptr ? &cpu_device() : device,
         .control_plane = std::move(plane),
         .shares_device = device != nullptr && world_size > 1,
         .topology = {.host = host_name(), .local_rank = member->rank()},
         .control = std::move(control),
         .modules = device == nullptr ? nullptr : make(group_of_all(*member, Channel::kModules)),
         .replicate = {.gather = make(group_of_one(*member)),
                       .reduce = make(group_of_one(*member))},
         .shard = {.gather = make(group_of_all(*member, Channel::kGather)),
                   .reduce = make(group_of_all(*member, Channel::kReduce))},
         .on_warning = options.on_warning});
  }
  return meshes;
}

}  // namespace fsdp
