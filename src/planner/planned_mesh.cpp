#include "planner/planned_mesh.h"

#include <fmt/format.h>

#include <algorithm>
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
  if (!request.trace_file.empty() && !request.rates) {
    throw InvalidArgument({.what = "trace_file is set, but rates are not",
                           .where = "PlanRequest",
                           .hint = "set rates, because the trace shows the time of the step"});
  }
  return request;
}

[[noreturn]] void refuse_rates(const PlanRequest& request, std::string_view lacks,
                               std::string_view hint) {
  throw InvalidArgument(
      {.what = fmt::format("the rates of '{}' have no {}", request.rates->machine, lacks),
       .where = "PlanRequest::rates",
       .hint = std::string(hint)});
}

bool offloads_from_gpu(const PlanRequest& request) {
  return request.options.cpu_offload && request.mesh.device == DeviceKind::kCuda;
}

// Returns the cores that a rank on the CPU may use in addition to those of its peers, which compute
// at the same time. Measured rates include the effect of more threads than cores, so the result is
// at least the number of threads. 0: the rates do not state the cores.
double cores_of_rank(const PlanRequest& request) {
  const CpuRates& cpu = request.rates->cpu;
  if (cpu.cores == 0) return 0;
  const int a_host = request.ranks_per_host == 0 ? request.ranks : request.ranks_per_host;
  return std::max<double>(std::max(1, cpu.threads), static_cast<double>(cpu.cores) / a_host);
}

std::unique_ptr<StepClock> clock_of(const PlanRequest& request) {
  if (!request.rates) return nullptr;
  const Rates& rates = *request.rates;
  if (request.shares_gpu) {
    refuse_rates(request, "rates of ranks that share a GPU", "plan a GPU for each rank");
  }
  if (offloads_from_gpu(request) && (rates.host_copy == 0 || rates.transfer == 0)) {
    refuse_rates(request, "rates of a host for CPU offload",
                 "add host_copy_gbps and transfer_gbps to \"device\"");
  }
  if (request.ranks > 1 && rates.host.bytes == 0) {
    refuse_rates(request, "link between ranks of a host",
                 "add a link with the scope host (fsdp-rates --ranks N), or plan one rank");
  }
  const bool one_host = request.ranks_per_host == 0 || request.ranks_per_host == request.ranks;
  if (!one_host && rates.net.bytes == 0) {
    refuse_rates(
        request, "link between hosts",
        "add a link with the scope net (fsdp-plan --links), or plan the ranks of one host");
  }
  if (request.mesh.device == DeviceKind::kCuda) return std::make_unique<StepClock>(rates);
  Rates used = rates;
  used.transfer = 0;  // the CPU's memory is the host's
  return std::make_unique<StepClock>(used, cores_of_rank(request));
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
    : clock_(clock_of(checked(request))),
      device_(std::make_unique<MetaDevice>(request.mesh.device != DeviceKind::kCuda, clock_.get())),
      host_(clock_ && offloads_from_gpu(request) ? MetaDevice::host_with(*clock_) : nullptr),
      mesh_(make(request)) {}

std::function<void(const Collective&, Stream&)> PlannedMesh::issue_with(
    const TimedGroup& group) const {
  if (!clock_) return {};
  return [group, clock = clock_.get()](const Collective& collective, Stream& stream) {
    clock->issue_collective(group, collective, stream);
  };
}

Mesh PlannedMesh::make(const PlanRequest& request) {
  const int a_host = request.ranks_per_host == 0 ? request.ranks : request.ranks_per_host;
  const MeshShape shape = shape_of(request.mesh, request.ranks, a_host);
  const bool by_nccl =
      request.mesh.device == DeviceKind::kCuda && request.ranks > 1 && !request.shares_gpu;
  // The communicator's collectives only count bytes. The communicator has the capabilities of the
  // planned back-end, because the engine chooses its buffers by them.
  const auto group = [&](int size, int stride) {
    const int hosts = hosts_of(size, stride, a_host);
    return std::make_unique<SimulatedCommunicator>(SimulatedGroup{
        .size = size,
        .peers = SimulatedPeers::kAbsent,
        .on_issue = issue_with({.ranks = size,
                                .hosts = hosts,
                                .ranks_of_host = a_host,
                                .by_network = request.mesh.device != DeviceKind::kCuda}),
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
      .host = host_ ? host_.get() : device_.get(),
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
