#include "fsdp/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/agreement.h>

#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh_state.h"
#include "fsdp/program_text.h"
#include "memory/free_memory.h"
#include "plan/remedies.h"

namespace fsdp {
namespace {

bool computes_on_host(const Mesh& mesh) { return state_of(mesh).device().name() == "cpu"; }

// Returns the hint of the error for a plan beyond the limit: flags that lower the memory of the
// step. `host_is_other` has the meaning that RemedyCase defines.
std::string ways_out(const Mesh& mesh, const StepPlan& plan, const Options& options,
                     bool host_is_other) {
  const bool gathers = plan.memory.forward_peak[MemoryCategory::kParameterSlots] > 0;
  std::vector<std::string_view> ways;
  for (const Remedy& remedy : remedies(options, {.gathers = gathers,
                                                .one_rank = mesh.world_size() == 1,
                                                .host_is_other = host_is_other})) {
    ways.push_back(remedy.flag);
  }
  return fmt::format("try in order of cost: {}; use --force to run anyway", fmt::join(ways, ", "));
}

std::string parts_of(const StepPlan& plan) {
  return fmt::format(
      "planned: {} for the engine, {} for LibTorch at its peak{}",
      format_bytes(plan.memory.held_bytes),
      format_bytes(plan.peak_bytes() - plan.memory.held_bytes),
      plan.refused_at.empty() ? "" : "; memory would run out in: " + plan.refused_at);
}

}  // namespace

// The plan must have the buffers of the real run, so the request copies the properties of the real
// mesh by which the engine chooses buffers.
PlanRequest request_of(const Mesh& mesh, const Options& options) {
  const MeshOptions arranged{
      .device = computes_on_host(mesh) ? DeviceKind::kCpu : DeviceKind::kCuda,
      .shard = mesh.size(Axis::kShard),
      .replicate = mesh.size(Axis::kReplicate)};
  const MeshParts& parts = state_of(mesh).parts();
  const int on_host = parts.topology.local_world_size;
  const Axis mapped = parts.shape.has_two_axes() ? Axis::kShard : Axis::kWorld;
  return {.ranks = mesh.world_size(),
          .ranks_per_host = parts.topology.one_host ? 0 : on_host,
          .mesh = arranged,
          .shares_gpu = parts.shares_device,
          .maps_shards = state_of(mesh).gather_communicator(mapped).capabilities().maps_ranks,
          .options = options};
}

void require_room(const Mesh& mesh, const StepPlan& plan, const Options& options) {
  const int64_t device = plan.peak_bytes();
  if (options.memory_limit > 0 && device > options.memory_limit) {
    throw InvalidArgument(
        {.what =
             fmt::format("a step needs {} of device memory per rank, but the memory limit is {}",
                         format_bytes(device), format_bytes(options.memory_limit)),
         .where = "the plan of the run",
         .cause = parts_of(plan),
         .hint = ways_out(mesh, plan, options, /*host_is_other=*/true)});
  }
  // On the CPU the bytes of the device are also bytes of the host. All ranks of the mesh share this
  // host.
  const int64_t of_host = plan.memory.host_held_bytes + (computes_on_host(mesh) ? device : 0);
  const std::optional<int64_t> free = free_host_bytes();
  const int ranks = state_of(mesh).parts().topology.local_world_size;
  if (!free || of_host <= *free / ranks) return;
  throw InvalidArgument({.what = fmt::format("a step needs {} of host memory per rank, and this "
                                             "host has {} ranks, but only {} are free",
                                             format_bytes(of_host), ranks, format_bytes(*free)),
                         .where = "the plan of the run",
                         .cause = parts_of(plan),
                         .hint = ways_out(mesh, plan, options, /*host_is_other=*/false)});
}

std::optional<StepPlan> plan_run(const Mesh& mesh, const Options& options,
                                 const RunPlanOptions& how,
                                 const std::function<StepPlan(const PlanRequest&)>& plan) {
  // Rank 0 plans for all ranks. If rank 0 throws, the other ranks also throw and do not wait for
  // it.
  std::optional<StepPlan> planned;
  run_or_throw_on_all_ranks(mesh, "planning the step", [&] {
    if (mesh.rank() != 0) return;
    PlanRequest request = request_of(mesh, options);
    request.optimizer_moments = how.optimizer_moments;
    request.quantized_moments = how.quantized_moments;
    request.checkpoints = how.checkpoints;
    planned = plan(request);
    if (!how.force) require_room(mesh, *planned, options);
  });
  return planned;
}

}  // namespace fsdp
