#include "comm/collective_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "comm/job/collective_record.h"
#include "fsdp/error.h"

namespace fsdp {

void require_valid(const Collective& collective, int size) {
  const OperationTraits traits = traits_of(collective.operation);
  if (traits.name.empty()) {
    throw InvalidArgument({.what = fmt::format("unknown collective operation {}",
                                               static_cast<int>(collective.operation)),
                           .hint = "use a value of Operation"});
  }
  // The description is composed only for errors, because composing it costs more than all checks
  // together.
  const auto where = [&] { return describe(make_record(collective)); };
  for (const CollectivePart& part : collective.parts) {
    if (part.numel < 0) {
      throw InvalidArgument(
          {.what = fmt::format("a part of the collective has {} elements, expected 0 or more",
                               part.numel),
           .where = where(),
           .hint = "set numel to 0 or more"});
    }
    const int64_t sends = part.numel * collective.pieces_sent(size);
    // Communicators copy the runs without further checks, so the lengths of the runs must add up to
    // `sends`.
    int64_t in_runs = 0;
    bool negative = false;
    for (const SendRun& run : part.runs) {
      in_runs += run.numel;
      negative |= run.numel < 0;
    }
    if (!part.runs.empty() && (negative || in_runs != sends)) {
      throw InvalidArgument(
          {.what = fmt::format("the runs of a part have {} elements in all{}, expected {}", in_runs,
                               negative ? " and one run has fewer than 0" : "", sends),
           .where = where(),
           .hint = "make the runs add up to the elements that the part sends"});
    }
    if (collective.reduce_op == ReduceOp::kAvg && !is_floating(part.dtype)) {
      throw InvalidArgument({.what = fmt::format("{} cannot be averaged", name_of(part.dtype)),
                             .where = where(),
                             .hint = "use kSum, or convert the data to a floating type"});
    }
  }
  if (!traits.reduces && collective.reduce_op != ReduceOp::kSum) {
    throw InvalidArgument(
        {.what = fmt::format("{} does not reduce, but reduce_op is set", traits.name),
         .where = where(),
         .hint = "leave reduce_op at its default, kSum"});
  }
  if (!traits.has_root && collective.root != -1) {
    throw InvalidArgument(
        {.what = fmt::format("{} has no root rank, but root is {}", traits.name, collective.root),
         .where = where(),
         .hint = "leave root at its default, -1"});
  }
  if (traits.has_root && (collective.root < 0 || collective.root >= size)) {
    throw InvalidArgument({.what = fmt::format("{} has root {}, but the group has {} ranks",
                                               traits.name, collective.root, size),
                           .where = where(),
                           .hint = "pass a rank from 0 to size() - 1"});
  }
}

void require_color(int color, std::string_view where) {
  if (color >= 0) return;
  throw InvalidArgument({.what = fmt::format("color is {}, expected 0 or more", color),
                         .where = std::string(where),
                         .hint = "pass 0 or more; ranks with equal colors form a group"});
}

Share share_of(int rank, int size, int64_t numel) {
  // Shares are multiples of 64 elements, so that in aligned memory no two ranks write the same
  // cache line.
  const int64_t share = round_up(divide_up(numel, size), 64);
  const int64_t begin = std::min(numel, rank * share);
  return {begin, std::min(numel, begin + share)};
}

}  // namespace fsdp
