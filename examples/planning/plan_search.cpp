#include "planning/plan_search.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/mesh_parts.h"
#include "named_optimizer.h"
#include "plan/placement.h"
#include "plan/remedies.h"

namespace planning {
namespace {

constexpr int kMostRanks = 1 << 16;

fsdp::Options options_of(const PlanSettings& settings, const KnownModel& model) {
  fsdp::Options options = settings.run.engine;
  options.memory_limit = 0;  // the search compares with the room itself
  options.unit_options = model.unit_options;
  prepare_engine(settings.optim, options);
  return options;
}

// Returns true if the mesh allows this number of ranks.
bool can_be(const fsdp::MeshOptions& mesh, int ranks) {
  return (mesh.shard == 0 || ranks % mesh.shard == 0) &&
         (mesh.replicate == 0 || ranks % mesh.replicate == 0) &&
         (mesh.shard == 0 || mesh.replicate == 0 || mesh.shard * mesh.replicate == ranks);
}

// Returns true if no number of ranks fits. `bytes` is the need with some number of ranks, and
// `half` is the need with half as many ranks. Doubling the ranks halves the sharded part. So
// 2 · bytes - half remains with any number of ranks. One per cent is added for padding.
bool stays_above(int64_t bytes, int64_t half, int64_t room) {
  return room > 0 && static_cast<double>(2 * bytes - half) > 1.01 * static_cast<double>(room);
}

}  // namespace

bool fits(const Room& needed, const Room& room) {
  return (room.device == 0 || needed.device <= room.device) &&
         (room.host == 0 || needed.host <= room.host);
}

void use_threads_of(const PlanSettings& settings) {
  const int cores = std::max(1U, std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / settings.ranks_per_host()));
}

void choose_strategy(PlanSettings& settings, Planners& planners) {
  const int a_host = settings.ranks_per_host();
  const bool groups_are_hosts =
      settings.hosts > 1 &&
      fsdp::shape_of(settings.run.mesh, settings.ranks, a_host).shard == a_host;
  if (settings.run.names_strategy || settings.on_gpus() || !groups_are_hosts) return;
  PlanSettings hybrid = settings;
  hybrid.run.engine.strategy = fsdp::Strategy::kHybridShard;
  hybrid.rates.reset();
  hybrid.trace_file.clear();
  const bool is_possible = fits(PlanSearch(hybrid, planners).needed(), settings.room());
  settings.run.engine.strategy =
      is_possible ? fsdp::Strategy::kHybridShard : fsdp::Strategy::kFullShard;
}

Planners::Planners(KnownModel model, int64_t length) : model_(std::move(model)), length_(length) {
  if (length <= model_.longest) return;
  throw fsdp::InvalidArgument(
      {.what = fmt::format("--seq-len cannot be {}", length),
       .hint = fmt::format("use at most {} tokens, the longest sequence of {}", model_.longest,
                           model_.name)},
      fsdp::ExitCode::kUsage);
}

fsdp::Planner& Planners::of(int64_t sequences) {
  auto& planner = planners_[{sequences, at::get_num_threads()}];
  if (!planner) planner = planner_of(model_, {.sequences = sequences, .length = length_});
  return *planner;
}

PlanSearch::PlanSearch(const PlanSettings& settings, Planners& planners)
    : settings_(settings),
      planners_(planners),
      plan_(planners.of(settings.batch.sequences).plan(asked())) {}

fsdp::PlanRequest PlanSearch::asked() const {
  fsdp::PlanRequest asked = request(settings_.ranks, options_of(settings_, planners_.model()));
  if (settings_.save) asked.checkpoints = settings_.run.checkpoints;
  asked.rates = settings_.rates;
  asked.trace_file = settings_.trace_file;
  return asked;
}

fsdp::PlanRequest PlanSearch::request(int ranks, const fsdp::Options& options) const {
  const int a_host = settings_.ranks_per_host();
  return {.ranks = ranks,
          .ranks_per_host = std::min(ranks, a_host),
          .mesh = settings_.run.mesh,
          // Processes of one host that fsdp-run starts map each other's shards.
          .maps_shards = !settings_.on_gpus(),
          .options = options,
          .optimizer = optimizer_named(settings_.optim).kind,
          .ema = settings_.ema};
}

Room PlanSearch::room_of(const fsdp::StepPlan& plan, int ranks) const {
  const int64_t device = plan.peak_bytes();
  const int64_t of_host = plan.memory.host_held_bytes + (settings_.on_gpus() ? 0 : device);
  return {.device = device, .host = of_host * std::min(ranks, settings_.ranks_per_host())};
}

Room PlanSearch::needs(int ranks, const fsdp::Options& options, int64_t sequences) {
  return room_of(planners_.of(sequences).plan(request(ranks, options)), ranks);
}

std::vector<StrategyNeeds> PlanSearch::strategies() {
  const int a_host = settings_.ranks_per_host();
  const bool has_groups =
      fsdp::shape_of(settings_.run.mesh, settings_.ranks, a_host).has_two_axes();
  std::vector<StrategyNeeds> found;
  for (const fsdp::StrategyRow& row : fsdp::strategies()) {
    if (row.is_by_groups() && !has_groups) continue;
    fsdp::Options options = options_of(settings_, planners_.model());
    options.strategy = row.strategy;
    found.push_back(
        {std::string(row.name), needs(settings_.ranks, options, settings_.batch.sequences)});
  }
  return found;
}

std::optional<RanksNeeds> PlanSearch::smallest_ranks(const Room& room) {
  const int a_host = settings_.ranks_per_host();
  const fsdp::Options options = options_of(settings_, planners_.model());
  RanksNeeds half;  // previous result for ranks on several hosts
  for (int ranks = 1; ranks <= kMostRanks;) {
    if (can_be(settings_.run.mesh, ranks)) {
      const Room needed = needs(ranks, options, settings_.batch.sequences);
      if (fits(needed, room)) return RanksNeeds{.ranks = ranks, .needed = needed};
      // Each doubling of ranks halves the sharded part, so the limit is known.
      const bool halves = half.ranks > 0 && ranks == 2 * half.ranks;
      if (halves && (stays_above(needed.device, half.needed.device, room.device) ||
                     stays_above(needed.host, half.needed.host, room.host))) {
        break;
      }
      if (ranks > a_host) half = {.ranks = ranks, .needed = needed};
    }
    ranks = ranks < a_host ? std::min(2 * ranks, a_host) : 2 * ranks;
  }
  return std::nullopt;
}

std::vector<ChangeNeeds> PlanSearch::changes(const Room& room) {
  constexpr int64_t kWorthPart = 20;
  const int64_t missing = needed().device - room.device;
  std::vector<ChangeNeeds> large = changes_saving(missing / kWorthPart, room);
  // Prefer few changes with a large effect; if these are not enough, add the small ones.
  if (!large.empty() && fits(large.back().together, room)) return large;
  std::vector<ChangeNeeds> all = changes_saving(/*least=*/1, room);
  return !all.empty() && fits(all.back().together, room) ? all : large;
}

std::vector<ChangeNeeds> PlanSearch::changes_saving(int64_t least, const Room& room) {
  const fsdp::Options asked = options_of(settings_, planners_.model());
  const int64_t sequences = settings_.batch.sequences;
  fsdp::Options changed = asked;
  int64_t fewer = sequences;
  std::vector<ChangeNeeds> found;
  const bool gathers = plan_.memory.forward_peak[fsdp::MemoryCategory::kParameterSlots] > 0;
  for (const fsdp::Remedy& remedy : fsdp::remedies(asked, {.gathers = gathers,
                                                          .one_rank = settings_.ranks == 1,
                                                          .host_is_other = settings_.on_gpus()})) {
    const bool is_batch = remedy.kind == fsdp::RemedyKind::kSmallerBatch && sequences > 1;
    if (remedy.kind != fsdp::RemedyKind::kOption && !is_batch) continue;  // ranks: smallest_ranks
    fsdp::Options alone = asked, together = changed;
    if (!is_batch) {
      remedy.apply(alone);
      remedy.apply(together);
    }
    const ChangeNeeds change{.change = is_batch ? "--batch 1" : std::string(remedy.flag),
                             .alone = needs(settings_.ranks, alone, is_batch ? 1 : sequences),
                             .together = needs(settings_.ranks, together, is_batch ? 1 : fewer)};
    const int64_t saved = needed().device - change.alone.device;
    if (saved < least || !fits({.host = change.alone.host}, room)) continue;
    changed = together;
    if (is_batch) fewer = 1;
    found.push_back(change);
    if (fits(change.together, room)) break;
  }
  return found;
}

}  // namespace planning
