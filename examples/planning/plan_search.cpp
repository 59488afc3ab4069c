#include "planning/plan_search.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>
#include <utility>

#include "comm/mesh_parts.h"
#include "plan/placement.h"
#include "plan/remedies.h"

namespace planning {
namespace {

constexpr int kMostRanks = 1 << 16;

fsdp::Options options_of(const PlanSettings& settings, const KnownModel& model) {
  fsdp::Options options = settings.run.engine;
  options.memory_limit = 0;
  options.unit_options = model.unit_options;
  return options;
}

KnownModel taking(KnownModel model, const BatchShape& batch) {
  if (batch.length > model.longest) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("--seq-len cannot be {}", batch.length),
         .hint = fmt::format("{} takes sequences of up to {} tokens", model.name, model.longest)},
        fsdp::ExitCode::kUsage);
  }
  return model;
}

bool on_gpus(const PlanSettings& settings) {
  return settings.run.mesh.device == fsdp::DeviceKind::kCuda;
}

// The mesh can be so large.
bool can_be(const fsdp::MeshOptions& mesh, int ranks) {
  return (mesh.shard == 0 || ranks % mesh.shard == 0) &&
         (mesh.replicate == 0 || ranks % mesh.replicate == 0) &&
         (mesh.shard == 0 || mesh.replicate == 0 || mesh.shard * mesh.replicate == ranks);
}

}  // namespace

PlanSearch::PlanSearch(const PlanSettings& settings, KnownModel model)
    : settings_(settings),
      model_(taking(std::move(model), settings.batch)),
      planner_(planner_of(model_, settings.batch)),
      plan_(planner_->plan(request(settings.ranks, options_of(settings, model_)))) {}

fsdp::PlanRequest PlanSearch::request(int ranks, const fsdp::Options& options) const {
  const int a_host = settings_.ranks / settings_.hosts;
  const bool one_host = ranks <= a_host;
  // Processes of one host, as fsdp-run starts them.
  const bool maps = one_host && !on_gpus(settings_);
  return {.ranks = ranks,
          .ranks_per_host = one_host ? ranks : a_host,
          .mesh = settings_.run.mesh,
          .maps_shards = maps,
          .options = options};
}

fsdp::StepPlan PlanSearch::plan(int ranks, const fsdp::Options& options, int64_t sequences) {
  if (sequences == settings_.batch.sequences) return planner_->plan(request(ranks, options));
  return planner_of(model_, {.sequences = sequences, .length = settings_.batch.length})
      ->plan(request(ranks, options));
}

std::vector<StrategyBytes> PlanSearch::strategies() {
  using fsdp::Strategy;
  std::vector<Strategy> rows = {Strategy::kFullShard, Strategy::kZero2, Strategy::kZero1,
                                Strategy::kReplicate};
  const int a_host = settings_.ranks / settings_.hosts;
  if (fsdp::shape_of(settings_.run.mesh, settings_.ranks, a_host).has_two_axes()) {
    rows.insert(rows.end(), {Strategy::kHybridShard, Strategy::kHfsdp, Strategy::kHpz});
  }
  std::vector<StrategyBytes> found;
  for (const Strategy strategy : rows) {
    fsdp::Options options = options_of(settings_, model_);
    options.strategy = strategy;
    found.push_back({std::string(fsdp::name_of(strategy)),
                     plan(settings_.ranks, options, settings_.batch.sequences).peak_bytes()});
  }
  return found;
}

std::optional<RanksBytes> PlanSearch::smallest_ranks(int64_t budget) {
  const int a_host = settings_.ranks / settings_.hosts;
  const fsdp::Options options = options_of(settings_, model_);
  RanksBytes half;  // of as many hosts more than one
  for (int ranks = 1; ranks <= kMostRanks;) {
    if (can_be(settings_.run.mesh, ranks)) {
      const int64_t bytes = plan(ranks, options, settings_.batch.sequences).peak_bytes();
      if (bytes <= budget) return RanksBytes{.ranks = ranks, .bytes = bytes};
      // What ranks share halves with each doubling, so this is what is left with however many; but
      // for padding.
      const int64_t least = 2 * bytes - half.bytes;
      const bool halves = half.ranks > 0 && ranks == 2 * half.ranks;
      if (halves && static_cast<double>(least) > 1.01 * static_cast<double>(budget)) break;
      if (ranks > a_host) half = {.ranks = ranks, .bytes = bytes};
    }
    ranks = ranks < a_host ? std::min(2 * ranks, a_host) : 2 * ranks;
  }
  return std::nullopt;
}

std::vector<ChangeBytes> PlanSearch::changes(int64_t budget) {
  const fsdp::Options asked = options_of(settings_, model_);
  const int64_t sequences = settings_.batch.sequences;
  fsdp::Options changed = asked;
  int64_t fewer = sequences;
  std::vector<ChangeBytes> found;
  const bool gathers = plan_.memory.forward_peak[fsdp::MemoryCategory::kParameterSlots] > 0;
  for (const fsdp::Remedy& remedy : fsdp::remedies(asked, {.gathers = gathers,
                                                          .one_rank = settings_.ranks == 1,
                                                          .host_is_other = on_gpus(settings_)})) {
    fsdp::Options alone = asked;
    ChangeBytes change{.change = std::string(remedy.flag)};
    if (remedy.kind == fsdp::RemedyKind::kOption) {
      remedy.apply(alone);
      remedy.apply(changed);
      change.alone = plan(settings_.ranks, alone, sequences).peak_bytes();
    } else if (remedy.kind == fsdp::RemedyKind::kSmallerBatch && sequences > 1) {
      fewer = 1;
      change.change = "--batch 1";
      change.alone = plan(settings_.ranks, asked, fewer).peak_bytes();
    } else {
      continue;  // more ranks: smallest_ranks
    }
    change.together = plan(settings_.ranks, changed, fewer).peak_bytes();
    found.push_back(change);
    if (change.together <= budget) break;
  }
  return found;
}

}  // namespace planning
