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
    throw InvalidArgument({.what = fmt::format("operation {} of a collective",
                                               static_cast<int>(collective.operation)),
                           .hint = "traits_of has a row for each that exists"});
  }
  // Composes the description for errors only, because it costs more than all checks.
  const auto where = [&] { return describe(make_record(collective)); };
  for (const CollectivePart& part : collective.parts) {
    if (part.numel < 0) {
      throw InvalidArgument({.what = fmt::format("a part of {} elements", part.numel),
                             .where = where(),
                             .hint = "0 is the least"});
    }
    const int64_t sends = part.numel * collective.pieces_sent(size);
    // Communicators copy runs without further checks, so the sum of their lengths must be exact.
    int64_t in_runs = 0;
    bool negative = false;
    for (const SendRun& run : part.runs) {
      in_runs += run.numel;
      negative |= run.numel < 0;
    }
    if (!part.runs.empty() && (negative || in_runs != sends)) {
      throw InvalidArgument({.what = fmt::format("runs of {} elements{}", in_runs,
                                                 negative ? ", one of less than none" : ""),
                             .where = where(),
                             .hint = fmt::format("{} are sent", sends)});
    }
    if (collective.reduce_op == ReduceOp::kAvg && !is_floating(part.dtype)) {
      throw InvalidArgument({.what = fmt::format("{} cannot be averaged", name_of(part.dtype)),
                             .where = where(),
                             .hint = "average floating types; sum integers"});
    }
  }
  if (!traits.reduces && collective.reduce_op != ReduceOp::kSum) {
    throw InvalidArgument({.what = fmt::format("{} with a reduce-op", traits.name),
                           .where = where(),
                           .hint = "leave it at kSum: nothing is reduced"});
  }
  if (!traits.has_root && collective.root != -1) {
    throw InvalidArgument({.what = fmt::format("{} with root {}", traits.name, collective.root),
                           .where = where(),
                           .hint = "leave it at -1: no rank differs from the others"});
  }
  if (traits.has_root && (collective.root < 0 || collective.root >= size)) {
    throw InvalidArgument({.what = fmt::format("root {} of {} ranks", collective.root, size),
                           .where = where(),
                           .hint = "ranks are 0 to size() - 1"});
  }
}

Share share_of(int rank, int size, int64_t numel) {
  // Shares are multiples of 64 elements, so that in aligned memory no two ranks write the same
  // cache line.
  const int64_t share = round_up(divide_up(numel, size), 64);
  const int64_t begin = std::min(numel, rank * share);
  return {begin, std::min(numel, begin + share)};
}

}  // namespace fsdp
