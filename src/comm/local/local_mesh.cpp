#include "comm/local/local_mesh.h"

#include <fmt/format.h>

#include "comm/cpu/segment_control_plane.h"
#include "comm/local/local_communicator.h"

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

}  // namespace

std::vector<MeshParts> local_mesh(int world_size, const MeshOptions& options) {
  if (world_size < 1) {
    throw InvalidArgument(
        {.what = fmt::format("a mesh of {} ranks", world_size), .hint = "one rank is the least"});
  }
  if (options.ablate_communication) {
    throw InvalidArgument({.what = "ablate_communication with ranks that are threads",
                           .cause = "ranks of one process do not run apart from each other",
                           .hint = "start processes and use Mesh::from_env"});
  }
  std::vector<MeshParts> meshes;
  for (const auto& member : join_all(world_size, options)) {
    const auto make = [&](RankGroup group) {
      return std::make_unique<LocalCommunicator>(member, std::move(group));
    };
    auto control = make(group_of_all(*member, Channel::kControl));
    auto plane = std::make_unique<SegmentControlPlane>(member, *control);
    meshes.push_back({.control_plane = std::move(plane),
                      .topology = {.host = host_name(), .local_rank = member->rank()},
                      .control = std::move(control),
                      .replicate = {.gather = make(group_of_one(*member)),
                                    .reduce = make(group_of_one(*member))},
                      .shard = {.gather = make(group_of_all(*member, Channel::kGather)),
                                .reduce = make(group_of_all(*member, Channel::kReduce))},
                      .on_warning = options.on_warning});
  }
  return meshes;
}

}  // namespace fsdp
