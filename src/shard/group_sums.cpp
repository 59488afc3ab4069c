#include "shard/group_sums.h"

#include <utility>

#include "kernels/cast_pack.h"

namespace fsdp {

void issue_reduction(const UnitContext& unit, const AxisCollective& move,
                     std::span<const CollectivePart> parts) {
  ShardContext& shared = unit.shared;
  int64_t numel = 0;
  for (const CollectivePart& part : parts) numel += part.numel;
  // The tag occupies the next position in the mesh's collective sequence, so no other collective
  // may be issued between these lines.
  const CollectiveTag tag = unit.next_tag(move.operation, numel);
  shared.comms.count_sent(move, parts);
  shared.comms.reduce(move.axis).issue(
      {.operation = move.operation, .parts = parts, .tag = tag, .reduce_op = shared.format.op},
      *shared.streams.reduce);
}

void add_to_main(const UnitContext& unit, const MainGradients& main,
                 const std::vector<Summed>& sums, bool overwrite) {
  std::vector<kernels::AccumulateRun> adds;
  for (const Summed& sum : sums) {
    adds.push_back({sum.at, main.place_of(sum.segment, sum.numel), sum.numel, sum.dtype,
                    DType::kFloat32, overwrite});
  }
  unit.shared.main->take(adds, unit.fqn);
}

bool travel_as_main(const UnitContext& unit) {
  return !unit.narrows() && !unit.shared.main->is_host();
}

void GroupSums::sum(std::vector<Summed>& sums) const {
  const Mesh& mesh = unit_.shared.mesh;
  for (const AxisCollective& move : unit_.collectives.across) {
    const bool scatters = move.operation == Operation::kReduceScatter;
    std::vector<CollectivePart> parts;
    parts.reserve(sums.size());
    for (Summed& sum : sums) {
      if (scatters) sum.numel /= mesh.size(move.axis);
      // The collective is in place: a rank sends all pieces and receives the sum at the position of
      // its own piece.
      const int64_t own = scatters ? mesh.rank(move.axis) * sum.numel : 0;
      std::byte* const in_place = sum.at + own * size_of(sum.dtype);
      parts.push_back({std::exchange(sum.at, in_place), in_place, sum.numel, sum.dtype});
    }
    issue_reduction(unit_, move, parts);
  }
}

// Sums over passes are formed in fp32, in the main gradients. The sums are sent in reduce_dtype.
void GroupSums::sum_to_main(std::vector<Summed> sums, bool adds, bool overwrite) const {
  // Without sums of earlier passes, the slot already contains all values to send.
  if (!are_awaited()) {
    sum(sums);
    return add_to_main(unit_, main_, sums, overwrite);
  }
  if (adds) add_to_main(unit_, main_, sums, /*overwrite=*/false);
  std::vector<Summed> totals = in_main();
  const ShardContext& shared = unit_.shared;
  if (travel_as_main(unit_)) return sum(totals);
  // The collective runs in the slot, so the totals are copied back to it. The copy comes from the
  // host, or casts to a narrower type, or both. With offload the download stream has added the
  // totals, so the reduce stream waits for the download stream (wait 20).
  shared.main->reduce_after_takes();
  std::vector<kernels::CastRun> casts;
  for (size_t i = 0; i < sums.size(); ++i) {
    casts.push_back({totals[i].at, sums[i].at, sums[i].numel, DType::kFloat32, sums[i].dtype});
  }
  kernels::cast_pack(*shared.streams.reduce, casts);
  sum(sums);
  add_to_main(unit_, main_, sums, /*overwrite=*/true);
}

// The reduce stream need not wait for the compute stream: compute's writes precede the reductions
// that made these sums (wait 5). Changes of `.grad` by users need no wait either:
// MainShards::sync_changes has already blocked the host until they were done.
void GroupSums::sum_main() {
  ShardContext& shared = unit_.shared;
  const bool in_slot = !travel_as_main(unit_);
  if (in_slot) slots_.open();
  const ContextSpan span = shared.streams.span(*shared.streams.reduce, "reduce", unit_.fqn);
  std::vector<Summed> sums = in_main();
  if (in_slot) {
    for (Summed& sum : sums) {
      sum.at = slots_.place(sum.segment, 0);
      sum.dtype = slots_.dtype();
    }
    sum_to_main(std::move(sums), /*adds=*/false, /*overwrite=*/false);
    // With offload the download stream is the last to read the slot.
    slots_.close(shared.main->last_of_reduce());
  } else {
    sum(sums);
  }
  set_awaited(false);
}

std::vector<Summed> GroupSums::in_main() const {
  std::vector<Summed> sums;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (main_.has(i)) sums.push_back({i, main_.at(i, 0), main_.numel(i), DType::kFloat32});
  }
  return sums;
}

}  // namespace fsdp
