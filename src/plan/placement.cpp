#include "plan/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr Placement kWhole = Placement::kReplicate;
constexpr Placement kCut = Placement::kShard;

struct Row {
  Strategy strategy;
  std::string_view name;
  Placements placements;
};

constexpr Row kTable[] = {
    // strategy                name           parameters, gradients, optimizer state
    {Strategy::kFullShard, "full-shard", {kCut, kCut, kCut}},
    {Strategy::kZero2, "zero2", {kWhole, kCut, kCut}},
    {Strategy::kZero1, "zero1", {kWhole, kWhole, kCut}},
    {Strategy::kReplicate, "replicate", {kWhole, kWhole, kWhole}},
};

const Row& row_of(Strategy strategy) {
  const auto* row = std::find_if(std::begin(kTable), std::end(kTable),
                                 [&](const Row& each) { return each.strategy == strategy; });
  if (row != std::end(kTable)) return *row;
  throw InvalidArgument({.what = "unknown strategy", .where = {}, .cause = {}, .hint = {}});
}

std::string names_of(const std::vector<Move>& moves) {
  std::string text;
  for (const Move& move : moves) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(move.operation));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

Placements placements_of(Strategy strategy) { return row_of(strategy).placements; }
std::string_view name_of(Strategy strategy) { return row_of(strategy).name; }

bool Moves::scatters_gradients() const {
  return std::any_of(after_backward.begin(), after_backward.end(),
                     [](const Move& move) { return move.operation == Operation::kReduceScatter; });
}

std::string Moves::to_string() const {
  return fmt::format(
      "main shards over {} ranks; before use: {}; after a change: {}; after "
      "backward: {}",
      main_ranks, names_of(before_use), names_of(after_change), names_of(after_backward));
}

Moves moves_of(const Placements& row, int ranks) {
  const bool ordered = row.optimizer >= row.gradients && row.gradients >= row.parameters;
  if (!ordered) {
    throw InvalidArgument({.what = "a row that shards parameters without gradients, or gradients "
                                   "without optimizer state",
                           .where = "the table of placements",
                           .cause = "what is cut must be optimised where its slice is",
                           .hint = "shard optimizer state first, then gradients, then parameters"});
  }
  Moves moves;
  if (ranks == 1) return moves;
  const Move gather{Operation::kAllGather, Axis::kShard};
  if (row.optimizer == kCut) moves.main_ranks = ranks;
  if (row.parameters == kCut) {
    moves.before_use = {gather};
  } else if (row.optimizer == kCut) {
    moves.after_change = {gather};
  }
  moves.after_backward = {
      {row.gradients == kCut ? Operation::kReduceScatter : Operation::kAllReduce, Axis::kShard}};
  return moves;
}

}  // namespace fsdp
