#include "plan/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr Placement kWhole = Placement::kWhole;
constexpr Placement kInside = Placement::kInside;
constexpr Placement kAll = Placement::kEverywhere;

constexpr StrategyRow kTable[] = {
    // strategy, name, {parameters, gradients, optimizer state}, meaning, other name
    {Strategy::kFullShard, "full-shard", {kAll, kAll, kAll}, "ZeRO-3", "zero3"},
    {Strategy::kZero2, "zero2", {kWhole, kAll, kAll}, "", ""},
    {Strategy::kZero1, "zero1", {kWhole, kWhole, kAll}, "", ""},
    {Strategy::kReplicate, "replicate", {kWhole, kWhole, kWhole}, "DDP", "ddp"},
    {Strategy::kHybridShard, "hybrid-shard", {kInside, kInside, kInside}, "", "hsdp"},
    {Strategy::kHfsdp, "hfsdp", {kInside, kInside, kAll}, "", ""},
    {Strategy::kHpz, "hpz", {kInside, kAll, kAll}, "", ""},
};

const StrategyRow& row_of(Strategy strategy) {
  const auto* row = std::ranges::find(kTable, strategy, &StrategyRow::strategy);
  if (row != std::end(kTable)) return *row;
  throw InvalidArgument({.what = "unknown strategy"});
}

std::string names_of(const std::vector<Move>& moves) {
  std::string text;
  for (const Move& move : moves) {
    const std::string_view axis = move.axis == Axis::kShard       ? " inside"
                                  : move.axis == Axis::kReplicate ? " across"
                                                                  : "";
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name_of(move.operation), axis);
  }
  return text.empty() ? "nothing" : text;
}

Placement on_mesh(Placement placement, const MeshShape& shape) {
  if (shape.size(Axis::kWorld) == 1) return kWhole;
  if (placement != kInside) return placement;
  if (shape.shard == 1) return kWhole;
  return shape.replicate == 1 ? kAll : kInside;
}

bool has_inside(const Placements& row) {
  return row.parameters == kInside || row.gradients == kInside || row.optimizer == kInside;
}

// The axes along which `to` is cut further than `from`, first to last.
std::span<const Axis> cuts(Placement from, Placement to, bool inside_first) {
  static constexpr std::array kWorldAxis{Axis::kWorld};
  static constexpr std::array kInsideThenAcross{Axis::kShard, Axis::kReplicate};
  const std::span<const Axis> both = kInsideThenAcross;
  if (from == to) return {};
  if (from == kWhole && to == kAll) return inside_first ? both : std::span<const Axis>(kWorldAxis);
  return from == kWhole ? both.first(1) : both.last(1);
}

std::vector<Move> moves_along(Operation operation, std::span<const Axis> axes) {
  std::vector<Move> moves;
  for (const Axis axis : axes) moves.push_back({operation, axis});
  return moves;
}

std::vector<Move> gathers(Placement from, Placement to, bool inside_first) {
  std::vector<Move> moves = moves_along(Operation::kAllGather, cuts(to, from, inside_first));
  std::reverse(moves.begin(), moves.end());
  return moves;
}

}  // namespace

std::span<const StrategyRow> strategies() { return kTable; }
bool StrategyRow::is_by_groups() const { return has_inside(placements); }

Placements placements_of(Strategy strategy) { return row_of(strategy).placements; }
std::string_view name_of(Strategy strategy) { return row_of(strategy).name; }

int Moves::pieces(Placement placement) const {
  switch (placement) {
    case Placement::kInside:
      return shape.shard;
    case Placement::kEverywhere:
      return shape.size(Axis::kWorld);
    case Placement::kWhole:
      break;
  }
  return 1;
}

Piece Moves::piece(Placement placement, int64_t segment_numel, int rank) const {
  Piece piece{.begin = 0, .numel = segment_numel};
  for (const Axis axis : cuts(kWhole, placement, has_inside(row))) {
    piece.numel /= shape.size(axis);
    piece.begin += shape.rank(axis, rank) * piece.numel;
  }
  return piece;
}

int Moves::main_rank(int rank) const {
  return static_cast<int>(piece(row.optimizer, main_ranks(), rank).begin);
}

int Moves::first_holder(int rank) const {
  switch (row.optimizer) {
    case Placement::kInside:
      return shape.rank(Axis::kShard, rank);
    case Placement::kEverywhere:
      return rank;
    case Placement::kWhole:
      break;
  }
  return 0;
}

std::vector<Move> Moves::to_whole() const {
  std::vector<Move> moves = after_change;
  moves.insert(moves.end(), before_use.begin(), before_use.end());
  return moves;
}

std::string Moves::to_string() const {
  std::string text = fmt::format(
      "main shards over {} ranks; before use: {}; after a change: {}; after backward: {}",
      main_ranks(), names_of(before_use), names_of(after_change), names_of(after_backward));
  if (!across.empty()) text += fmt::format("; after the last backward: {}", names_of(across));
  if (upload == Upload::kForUse) text += "; from the host before each use";
  if (upload == Upload::kAfterChange) text += "; from the host after a change";
  return text;
}

Moves moves_of(const Placements& given, const MeshShape& shape, bool offloads) {
  const bool ordered = given.optimizer >= given.gradients && given.gradients >= given.parameters;
  if (!ordered) {
    throw InvalidArgument({.what = "a row that shards parameters without gradients, or gradients "
                                   "without optimizer state",
                           .where = "the table of placements",
                           .cause = "what is cut must be optimised where its slice is",
                           .hint = "shard optimizer state first, then gradients, then parameters"});
  }
  const Placements row{on_mesh(given.parameters, shape), on_mesh(given.gradients, shape),
                       on_mesh(given.optimizer, shape)};
  Moves moves{.row = row, .shape = shape};
  const bool inside_first = has_inside(row);
  moves.before_use = gathers(row.parameters, kWhole, inside_first);
  moves.after_change = gathers(row.optimizer, row.parameters, inside_first);
  if (offloads) {
    const bool stays = given.parameters == kWhole && moves.before_use.empty();
    moves.upload = stays || !moves.after_change.empty() ? Upload::kAfterChange : Upload::kForUse;
  }
  if (shape.size(Axis::kWorld) == 1) return moves;
  moves.after_backward =
      row.gradients == kWhole
          ? std::vector<Move>{{Operation::kAllReduce, Axis::kWorld}}
          : moves_along(Operation::kReduceScatter, cuts(kWhole, row.gradients, inside_first));
  // Each group has summed its own.
  if (row.gradients == kInside) {
    const bool cut = row.optimizer == kAll;
    moves.across = {{cut ? Operation::kReduceScatter : Operation::kAllReduce, Axis::kReplicate}};
  }
  return moves;
}

}  // namespace fsdp
