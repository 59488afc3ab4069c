#include "planner/planned_mesh.h"

#include <fmt/format.h>

#include <utility>

#include "comm/mesh_state.h"
#include "comm/simulated/simulated_communicator.h"
#include "comm/simulated/simulated_control_plane.h"
#include "planner/meta_device.h"

namespace fsdp {
namespace {

const PlanRequest& checked(const PlanRequest& request) {
  if (request.ranks < 1 || request.ranks_per_host < 0 || request.mesh.shard < 0 ||
      request.mesh.replicate < 0) {
    throw InvalidArgument(
        {.what = fmt::format(
             "cannot plan ranks = {}, ranks_per_host = {}, replicate = {}, shard = {}",
             request.ranks, request.ranks_per_host, request.mesh.replicate, request.mesh.shard),
         .where = "PlanRequest",
         .hint = "set ranks to 1 or more, and each of the other three to 0 or more (0: derived "
                 "from the others)"});
  }
  return request;
}

// Returns Capabilities::hosts of a group: `members` ranks whose numbers differ by `stride`. Each
// host has `a_host` ranks.
int hosts_of(int members, int stride, int a_host) {
  const int span = members * stride;
  if (a_host % span == 0) return 1;
  const bool equal_shares = a_host % stride == 0 && span % a_host == 0;
  return equal_shares ? span / a_host : members;
}

}  // namespace

PlannedMesh::PlannedMesh(const PlanRequest& request)
    : device_(std::make_unique<MetaDevice>(checked(request).mesh.device != DeviceKind::kCuda)),
      mesh_(make(request)) {}

Mesh PlannedMesh::make(const PlanRequest& request) {
  const int a_host = request.ranks_per_host == 0 ? request.ranks : request.ranks_per_host;
  const MeshShape shape = shape_of(request.mesh, request.ranks, a_host);
  const bool by_nccl =
      request.mesh.device == DeviceKind::kCuda && request.ranks > 1 && !request.shares_gpu;
  // The communicator's collectives only count bytes. The communicator has the capabilities of the
  // planned back-end, because the engine chooses its buffers by them.
  const auto group = [&](int size, int stride) {
    const int hosts = hosts_of(size, stride, a_host);
    return std::make_unique<SimulatedCommunicator>(
        SimulatedGroup{.size = size,
                       .peers = SimulatedPeers::kAbsent,
                       .device = device_.get(),
                       // Ranks map the memory of their own host only.
                       .capabilities = {.averages = !by_nccl,
                                        .takes_runs = !by_nccl,
                                        .maps_ranks = request.maps_shards && hosts == 1,
                                        .hosts = by_nccl ? 1 : hosts},
                       .has_windows = by_nccl});
  };
  const auto axis = [&](int size, int stride) {
    return AxisCommunicators{.gather = group(size, stride), .reduce = group(size, stride)};
  };
  MeshParts parts{
      .device = device_.get(),
      .host = device_.get(),
      .control_plane = std::make_unique<SimulatedControlPlane>(0, request.ranks),
      .topology = {.host = "planned",
                   .local_rank = 0,
                   .local_world_size = a_host,
                   .one_host = a_host == request.ranks},
      // This communicator moves real host memory. Its peers contribute the same values as this
      // rank.
      .control = std::make_unique<SimulatedCommunicator>(SimulatedGroup{.size = request.ranks}),
      .modules = group(request.ranks, 1),
      .shape = shape,
      .world = axis(request.ranks, 1),
  };
  if (shape.has_two_axes()) {
    parts.shard = axis(shape.shard, 1);
    parts.replicate = axis(shape.replicate, shape.shard);
  }
  return mesh_of(std::move(parts));
}

}  // namespace fsdp
