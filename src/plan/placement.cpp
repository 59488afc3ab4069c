#include "plan/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr Placement kReplicate = Placement::kReplicate;
constexpr Placement kShardGroup = Placement::kShardGroup;
constexpr Placement kShardWorld = Placement::kShardWorld;

// clang-format off
constexpr StrategyRow kTable[] = {
  // Columns: strategy, name, {parameters, gradients, optimizer state}, meaning, other name.
  {Strategy::kFullShard, "full-shard", {kShardWorld, kShardWorld, kShardWorld}, "ZeRO-3", "zero3"},
  {Strategy::kZero2, "zero2", {kReplicate, kShardWorld, kShardWorld}, "", ""},
  {Strategy::kZero1, "zero1", {kReplicate, kReplicate, kShardWorld}, "", ""},
  {Strategy::kReplicate, "replicate", {kReplicate, kReplicate, kReplicate}, "DDP", "ddp"},
  {Strategy::kHybridShard, "hybrid-shard", {kShardGroup, kShardGroup, kShardGroup}, "", "hsdp"},
  {Strategy::kHfsdp, "hfsdp", {kShardGroup, kShardGroup, kShardWorld}, "", ""},
  {Strategy::kHpz, "hpz", {kShardGroup, kShardWorld, kShardWorld}, "", ""},
};
// clang-format on

const StrategyRow& row_of(Strategy strategy) {
  const auto* row = std::ranges::find(kTable, strategy, &StrategyRow::strategy);
  if (row != std::end(kTable)) return *row;
  throw InvalidArgument({.what = fmt::format("unknown strategy {}", static_cast<int>(strategy)),
                         .hint = "use a value of fsdp::Strategy"});
}

std::string_view ranks_of(Placement placement) {
  return placement == kReplicate ? "no ranks" : placement == kShardGroup ? "a group" : "all ranks";
}

std::string names_of(const std::vector<AxisCollective>& collectives) {
  std::string text;
  for (const AxisCollective& move : collectives) {
    const std::string_view axis = move.axis == Axis::kShard       ? " inside"
                                  : move.axis == Axis::kReplicate ? " across"
                                                                  : "";
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name_of(move.operation), axis);
  }
  return text.empty() ? "nothing" : text;
}

// Returns the canonical placement on this mesh. A placement over one rank becomes kReplicate. With
// only one group, kShardGroup becomes kShardWorld. So different values always mean different cuts,
// and the code below can compare values.
Placement on_mesh(Placement placement, const MeshShape& shape) {
  if (shape.size(Axis::kWorld) == 1) return kReplicate;
  if (placement != kShardGroup) return placement;
  if (shape.shard == 1) return kReplicate;
  return shape.replicate == 1 ? kShardWorld : kShardGroup;
}

bool has_inside(const Placements& row) {
  return row.parameters == kShardGroup || row.gradients == kShardGroup ||
         row.optimizer == kShardGroup;
}

// Returns the axes along which `to` cuts further than `from`, in the order of the cuts:
// [Note: pieces of pieces].
std::span<const Axis> cuts(Placement from, Placement to, bool inside_first) {
  static constexpr std::array kWorldAxis{Axis::kWorld};
  static constexpr std::array kInsideThenAcross{Axis::kShard, Axis::kReplicate};
  const std::span<const Axis> both = kInsideThenAcross;
  if (from == to) return {};
  if (from == kReplicate && to == kShardWorld)
    return inside_first ? both : std::span<const Axis>(kWorldAxis);
  return from == kReplicate ? both.first(1) : both.last(1);
}

std::vector<AxisCollective> collectives_along(Operation operation, std::span<const Axis> axes) {
  std::vector<AxisCollective> collectives;
  for (const Axis axis : axes) collectives.push_back({operation, axis});
  return collectives;
}

// The gathers undo the cuts, so their axes are in reverse order.
std::vector<AxisCollective> gathers(Placement from, Placement to, bool inside_first) {
  std::vector<AxisCollective> collectives =
      collectives_along(Operation::kAllGather, cuts(to, from, inside_first));
  std::reverse(collectives.begin(), collectives.end());
  return collectives;
}

}  // namespace

std::span<const StrategyRow> strategies() { return kTable; }
bool StrategyRow::is_by_groups() const { return has_inside(placements); }

Placements placements_of(Strategy strategy) { return row_of(strategy).placements; }
std::string_view name_of(Strategy strategy) { return row_of(strategy).name; }

int UnitCollectives::pieces(Placement placement) const {
  switch (placement) {
    case Placement::kShardGroup:
      return shape.shard;
    case Placement::kShardWorld:
      return shape.size(Axis::kWorld);
    case Placement::kReplicate:
      break;
  }
  return 1;
}

Piece UnitCollectives::piece(Placement placement, int64_t segment_numel, int rank) const {
  Piece piece{.begin = 0, .numel = segment_numel};
  for (const Axis axis : cuts(kReplicate, placement, has_inside(row))) {
    piece.numel /= shape.size(axis);
    piece.begin += shape.rank(axis, rank) * piece.numel;
  }
  return piece;
}

// Computes the index of the slice with a segment of main_ranks() elements: each slice is one
// element, and the position of this element equals the index of the slice.
int UnitCollectives::main_rank(int rank) const {
  return static_cast<int>(piece(row.optimizer, main_ranks(), rank).begin);
}

int UnitCollectives::first_holder(int rank) const {
  switch (row.optimizer) {
    case Placement::kShardGroup:
      return shape.rank(Axis::kShard, rank);
    case Placement::kShardWorld:
      return rank;
    case Placement::kReplicate:
      break;
  }
  return 0;
}

std::vector<AxisCollective> UnitCollectives::to_whole() const {
  std::vector<AxisCollective> collectives = after_update;
  collectives.insert(collectives.end(), on_unshard.begin(), on_unshard.end());
  return collectives;
}

std::string UnitCollectives::to_string() const {
  std::string text = fmt::format(
      "main shards over {} ranks; before use: {}; after a change: {}; after backward: {}",
      main_ranks(), names_of(on_unshard), names_of(after_update), names_of(after_backward));
  if (!across.empty()) text += fmt::format("; after the last backward: {}", names_of(across));
  if (upload == Upload::kForUse) text += "; from the host before each use";
  if (upload == Upload::kAfterUpdate) text += "; from the host after a change";
  return text;
}

UnitCollectives moves_of(const Placements& given, const MeshShape& shape, bool offloads) {
  // A rank optimizes its slice of the main shards, so it needs at least that slice of the
  // gradients.
  const bool ordered = given.optimizer >= given.gradients && given.gradients >= given.parameters;
  if (!ordered) {
    const auto* row = std::ranges::find(kTable, given, &StrategyRow::placements);
    throw InvalidArgument(
        {.what = fmt::format("strategy '{}' shards parameters over {}, gradients over {} and "
                             "optimizer state over {}; gradients need at least the ranks of the "
                             "parameters, optimizer state at least the ranks of the gradients",
                             row != std::end(kTable) ? row->name : "?", ranks_of(given.parameters),
                             ranks_of(given.gradients), ranks_of(given.optimizer)),
         .where = "the placement table",
         .cause = "a slice is optimised on the rank that holds it",
         .hint = "shard optimizer state first, then gradients, then parameters"});
  }
  const Placements row{on_mesh(given.parameters, shape), on_mesh(given.gradients, shape),
                       on_mesh(given.optimizer, shape)};
  UnitCollectives collectives{.row = row, .shape = shape};
  const bool inside_first = has_inside(row);
  collectives.on_unshard = gathers(row.parameters, kReplicate, inside_first);
  collectives.after_update = gathers(row.optimizer, row.parameters, inside_first);
  if (offloads) {
    // On one rank every placement becomes kReplicate, so `given` is checked instead of `row`. If
    // `given` shards the parameters, the parameters are not resident but uploaded for each use.
    const bool stays = given.parameters == kReplicate && collectives.on_unshard.empty();
    collectives.upload =
        stays || !collectives.after_update.empty() ? Upload::kAfterUpdate : Upload::kForUse;
  }
  if (shape.size(Axis::kWorld) == 1) return collectives;
  collectives.after_backward =
      row.gradients == kReplicate
          ? std::vector<AxisCollective>{{Operation::kAllReduce, Axis::kWorld}}
          : collectives_along(Operation::kReduceScatter,
                              cuts(kReplicate, row.gradients, inside_first));
  // If gradients are reduced within groups, each group has its own sums, which must be added over
  // the groups. If optimizer state is cut over the groups too, a rank needs only its slice of the
  // result.
  if (row.gradients == kShardGroup) {
    const bool cut = row.optimizer == kShardWorld;
    collectives.across = {
        {cut ? Operation::kReduceScatter : Operation::kAllReduce, Axis::kReplicate}};
  }
  return collectives;
}

}  // namespace fsdp
