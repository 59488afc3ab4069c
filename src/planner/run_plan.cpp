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

// Returns the bytes of host memory that a rank needs. On the CPU they include those of the device.
int64_t host_bytes(const Mesh& mesh, const StepPlan& plan) {
  return plan.memory.host_held_bytes + (computes_on_host(mesh) ? plan.peak_bytes() : 0);
}

// Returns the plan of a step for rank 0. Empty on the other ranks. If rank 0 throws, the other
// ranks also throw and do not wait for it. `accept` may refuse the plan.
std::optional<StepPlan> plan_on_rank_0(const Mesh& mesh, const Options& options,
                                       const RunPlanOptions& how,
                                       const std::function<StepPlan(const PlanRequest&)>& plan,
                                       const std::function<void(const StepPlan&)>& accept) {
  std::optional<StepPlan> planned;
  run_or_throw_on_all_ranks(mesh, "planning the step", [&] {
    if (mesh.rank() != 0) return;
    PlanRequest request = request_of(mesh, options);
    request.optimizer = how.optimizer;
    request.checkpoints = how.checkpoints;
    request.rates = how.rates;
    planned = plan(request);
    accept(*planned);
  });
  return planned;
}

// Returns the smallest free memory per rank of the job's hosts. Empty if a host does not know it.
// Collective.
std::optional<int64_t> least_free_bytes(const Mesh& mesh) {
  const int64_t ranks = state_of(mesh).parts().topology.local_world_size;
  const std::optional<int64_t> free = free_host_bytes();
  const int64_t own = free ? *free / ranks : -1;
  const int64_t least = -mesh.max(-own, "free memory");
  return least < 0 ? std::nullopt : std::optional(least);
}

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
  const int64_t of_host = host_bytes(mesh, plan);
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

StrategyChoice choose_strategy(const Mesh& mesh, const Options& options, const RunPlanOptions& how,
                               const std::function<StepPlan(const PlanRequest&)>& plan) {
  const Topology& topology = state_of(mesh).parts().topology;
  if (topology.one_host || !computes_on_host(mesh) ||
      mesh.size(Axis::kShard) != topology.local_world_size) {
    return {.strategy = options.strategy};
  }
  Options hybrid = options;
  hybrid.strategy = Strategy::kHybridShard;
  RunPlanOptions without_time = how;
  without_time.rates.reset();
  const std::optional<StepPlan> planned =
      plan_on_rank_0(mesh, hybrid, without_time, plan, [](const StepPlan&) {});
  const int64_t need = mesh.max(planned ? host_bytes(mesh, *planned) : 0, "planned memory");
  const std::optional<int64_t> free = least_free_bytes(mesh);
  const bool fits =
      (!free || need <= *free) && (options.memory_limit == 0 || need <= options.memory_limit);
  const std::string room = free ? format_bytes(*free) : "an unknown number of bytes";
  if (fits) {
    return {.strategy = Strategy::kHybridShard,
            .reason = fmt::format("hybrid-shard, because the ranks are on several hosts and {} per "
                                  "rank fit into the free memory ({}); --strategy changes this",
                                  format_bytes(need), room)};
  }
  return {
      .strategy = Strategy::kFullShard,
      .reason = fmt::format("full-shard, because hybrid-shard needs {} per rank, and only {} "
                            "are free or allowed; --strategy changes this",
                            format_bytes(need),
                            options.memory_limit > 0 ? format_bytes(options.memory_limit) : room)};
}

std::optional<StepPlan> plan_run(const Mesh& mesh, const Options& options,
                                 const RunPlanOptions& how,
                                 const std::function<StepPlan(const PlanRequest&)>& plan) {
  return plan_on_rank_0(mesh, options, how, plan, [&](const StepPlan& planned) {
    if (!how.force) require_room(mesh, planned, options);
  });
}

}  // namespace fsdp
