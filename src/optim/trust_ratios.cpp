#include "optim/trust_ratios.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/reduce_scalars.h"
#include "kernels/element/block_index.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// An aligned range of a parameter's elements. `numel` is a power of two and may reach beyond the
// parameter's end.
struct TreeNode {
  int64_t begin = 0;
  int64_t numel = 0;
};

// Cuts elements [begin, end) into the fewest nodes. At the end of a parameter, the last node may
// also cover elements that do not exist.
std::vector<TreeNode> nodes_of(int64_t begin, int64_t end, int64_t parameter_numel) {
  std::vector<TreeNode> nodes;
  const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(parameter_numel)));
  const int64_t last = end == parameter_numel ? whole : end;
  for (int64_t at = begin; at < end;) {
    // The largest node that begins here: the lowest bit of the index, or the whole tree.
    int64_t numel = at == 0 ? whole : at & -at;
    while (at + numel > last) numel /= 2;
    nodes.push_back({at, numel});
    at += numel;
  }
  return nodes;
}

int64_t bytes_of_sums(int32_t slots) {
  return slots * static_cast<int64_t>(sizeof(kernels::SquareSums));
}

}  // namespace

TrustRatios::TrustRatios(EngineParts& engine, const ChosenParameters& chosen) : engine_(engine) {
  for (const auto& unit : engine.model.units) {
    is_cut_ = is_cut_ || unit->shard->collectives().cuts_main();
  }
  for (const auto& unit : engine.model.units) {
    for (size_t i = 0; i < unit->shard->tensors().size(); ++i) {
      if (chosen.has(unit->index, static_cast<int>(i))) plan(*unit, static_cast<int>(i));
    }
  }
  MainPlace& main = *engine.context->main;
  const auto allocate = [&](int64_t bytes) {
    bytes_ += bytes;
    return with_place([] { return "the norms of parameters"; },
                      [&] { return main.allocate_own(bytes); });
  };
  const int64_t join_bytes =
      static_cast<int64_t>(planned_joins_.size() * sizeof(kernels::NodeJoin));
  sums_ = allocate(bytes_of_sums(slots_) * (is_cut_ ? 2 : 1));
  joins_ = allocate(join_bytes);
  ratios_ = allocate(static_cast<int64_t>(trees_.size() * sizeof(float)));
  // Each unit has as many blocks as its largest slice needs, so that all ranks hold the same bytes.
  int64_t blocks = 0;
  for (const auto& [unit, of_slices] : blocks_) blocks += std::ranges::max(of_slices);
  scratch_ = allocate(blocks * static_cast<int64_t>(sizeof(kernels::SquareSums)));
  if (join_bytes > 0) {
    const Buffer from = engine.context->streams.device.allocate(join_bytes, MemoryKind::kPinned);
    std::memcpy(from.data(), planned_joins_.data(), static_cast<size_t>(join_bytes));
    main.stream().copy(joins_.data(), from.data(), join_bytes);
    main.stream().synchronize();  // `from` is destroyed here
  }
  engine.add_memory(MemoryCategory::kOptimizerState, bytes_);
}

TrustRatios::~TrustRatios() { engine_.add_memory(MemoryCategory::kOptimizerState, -bytes_); }

kernels::SquareSums* TrustRatios::own_sums() const {
  return static_cast<kernels::SquareSums*>(sums_.data());
}

kernels::SquareSums* TrustRatios::all_sums() const {
  return is_cut_ ? own_sums() + slots_ : own_sums();
}

// Gives a slot to each node of each rank, in the order of the parameter's elements. All ranks
// compute the same slots and joins.
void TrustRatios::plan(const EngineUnit& unit, int parameter) {
  const ShardLayout& layout = unit.shard->layout();
  const int64_t numel = layout.parameters()[parameter].numel;
  if (numel == 0) return;
  const int rank = engine_.context->mesh.rank();
  const UnitCollectives& collectives = unit.shard->collectives();
  // If several ranks own the same slice, only the lowest of them contributes its sums.
  const bool contributes = !is_cut_ || collectives.first_holder(rank) == rank;
  const int segment = layout.segment_of(parameter);
  Tree tree{.own = {},
            .first_join = static_cast<int32_t>(planned_joins_.size()),
            .join_count = 0,
            .root = slots_,
            .ratio = static_cast<int32_t>(trees_.size())};
  struct Open {
    int32_t slot;
    int64_t numel;
  };
  std::vector<Open> open;  // nodes whose neighbour follows
  std::vector<int64_t>& blocks = blocks_[unit.index];
  blocks.resize(layout.ranks());
  const auto join_last = [&] {
    planned_joins_.push_back({.into = open[open.size() - 2].slot, .from = open.back().slot});
    open.pop_back();
  };
  for (int slice = 0; slice < layout.ranks(); ++slice) {
    const std::vector<Interval> intervals = layout.intervals(segment, slice);
    const Interval& interval = *std::ranges::find(intervals, parameter, &Interval::parameter);
    const int64_t end = interval.begin + interval.numel;
    const bool is_own = contributes && slice == collectives.main_rank(rank);
    if (interval.numel == 0) continue;
    for (const TreeNode& node : nodes_of(interval.begin, end, numel)) {
      const int64_t existing = std::min(node.numel, end - node.begin);
      if (is_own) {
        tree.own.push_back(
            {.begin = node.begin - interval.begin, .numel = existing, .slot = slots_});
      }
      blocks[slice] += kernels::blocks_for(existing);
      open.push_back({slots_++, node.numel});
      while (open.size() > 1 && open[open.size() - 2].numel == open.back().numel) {
        join_last();
        open.back().numel *= 2;
      }
    }
  }
  while (open.size() > 1) join_last();  // the missing neighbours are zeros
  tree.join_count = static_cast<int32_t>(planned_joins_.size()) - tree.first_join;
  trees_[{unit.index, parameter}] = std::move(tree);
}

void TrustRatios::compute(std::span<kernels::UpdateSegment> updates,
                          std::span<const Adapted> adapted, const kernels::UpdateRule& rule,
                          const TrustRule& trust, const float* grad_scale) {
  std::vector<kernels::SumNode> nodes;
  std::vector<kernels::TrustParameter> parameters;
  for (const Adapted& each : adapted) {
    kernels::UpdateSegment& update = updates[each.update];
    if (!trust.always_adapt && update.weight_decay == 0) continue;
    const Tree& tree = trees_.at({each.unit, each.parameter});
    for (const OwnNode& own : tree.own) {
      kernels::UpdateSegment elements = update;
      elements.param += own.begin;
      elements.grad += own.begin;
      for (float*& moment : elements.moments) {
        if (moment != nullptr) moment += own.begin;
      }
      elements.numel = own.numel;
      nodes.push_back({.elements = elements, .sums = own_sums() + own.slot});
    }
    float* const ratio = static_cast<float*>(ratios_.data()) + tree.ratio;
    parameters.push_back(
        {.joins = static_cast<const kernels::NodeJoin*>(joins_.data()) + tree.first_join,
         .join_count = tree.join_count,
         .root = tree.root,
         .weight_decay = trust.adds_decay ? update.weight_decay : 0,
         .ratio = ratio});
    update.trust_ratio = ratio;
  }
  ShardContext& context = *engine_.context;
  Stream& stream = context.main->stream();
  kernels::sum_squares(stream, nodes, rule, grad_scale, scratch_.data());
  if (is_cut_) {
    const CollectivePart part{own_sums(), all_sums(), 2 * int64_t{slots_}, DType::kFloat64};
    reduce_scalars(context, part, ReduceOp::kSum, "norms of parameters");
  }
  kernels::trust_ratios(stream, parameters, all_sums(), trust.formula);
}

}  // namespace fsdp
