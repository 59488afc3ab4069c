#include "comm/shm/shm_mesh.h"

#include <memory>
#include <utility>
#include <vector>

#include "comm/job/segment_control_plane.h"
#include "comm/shm/host_ranks.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp {
namespace {

// The control plane of processes. On rank 0 it owns the server, which rejects processes that start
// too late.
class ProcessControlPlane final : public SegmentControlPlane {
 public:
  ProcessControlPlane(std::shared_ptr<const JobMember> member, Communicator& control,
                      std::unique_ptr<RendezvousServer> server)
      : SegmentControlPlane(std::move(member), control), server_(std::move(server)) {}

 private:
  std::unique_ptr<RendezvousServer> server_;  // only on rank 0, and only if there is no launcher
};

}  // namespace

MeshParts shm_mesh(const LaunchEnvironment& environment, const MeshOptions& options) {
  const MeshShape shape = shape_of(options, environment.world_size, environment.local_world_size);
  HostRanks host = join_host(environment, {0, environment.world_size}, options.timeout);
  const auto member = std::make_shared<const JobMember>(JobMember::Parts{
      .memory = host.memory,
      .control = host.memory->control(),
      .rank = environment.rank,
      .kind = RankKind::kProcess,
      .timeout = options.timeout,
      .process_ended = [processes = host.processes](int peer) { return processes->ended(peer); },
      .on_slow_rank = slow_listener(options)});

  const auto make = [&](RankGroup group) -> std::unique_ptr<Communicator> {
    return std::make_unique<ShmCommunicator>(member, std::move(group), host.memory, host.heap);
  };
  const auto make_axis = [&](Axis axis, Channel gather, Channel reduce) {
    const std::vector<int> ranks = shape.ranks(axis, environment.rank);
    return AxisCommunicators{.gather = make(group_of(*member, gather, ranks)),
                             .reduce = make(group_of(*member, reduce, ranks))};
  };
  auto control = make(group_of_all(*member, Channel::kControl));
  auto plane = std::make_unique<ProcessControlPlane>(member, *control, std::move(host.server));
  MeshParts parts{.control_plane = std::move(plane),
                  .topology = {.host = host_name(),
                               .local_rank = environment.local_rank,
                               .local_world_size = environment.local_world_size},
                  .control = std::move(control),
                  .shape = shape,
                  .world = {.gather = make(group_of_all(*member, Channel::kGather)),
                            .reduce = make(group_of_all(*member, Channel::kReduce))},
                  .on_event = options.on_event};
  if (shape.has_two_axes()) {
    parts.shard = make_axis(Axis::kShard, Channel::kShardGather, Channel::kShardReduce);
    parts.replicate =
        make_axis(Axis::kReplicate, Channel::kReplicateGather, Channel::kReplicateReduce);
  }
  return parts;
}

}  // namespace fsdp
