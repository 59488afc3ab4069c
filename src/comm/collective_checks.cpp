#include "comm/collective_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "fsdp/error.h"

namespace fsdp {

void require_valid(std::span<const CollectivePart> parts, const CollectiveRecord& record,
                   int size) {
  for (const CollectivePart& part : parts) {
    if (part.numel < 0) {
      throw InvalidArgument({.what = fmt::format("a part of {} elements", part.numel),
                             .where = describe(record),
                             .hint = "0 is the least"});
    }
    const int64_t sends = part.numel * (record.operation == Operation::kReduceScatter ? size : 1);
    int64_t in_runs = 0;
    bool negative = false;
    for (const SendRun& run : part.runs) {
      in_runs += run.numel;
      negative |= run.numel < 0;
    }
    if (!part.runs.empty() && (negative || in_runs != sends)) {
      throw InvalidArgument({.what = fmt::format("runs of {} elements{}", in_runs,
                                                 negative ? ", one of less than none" : ""),
                             .where = describe(record),
                             .hint = fmt::format("{} are sent", sends)});
    }
    if (record.reduce_op == ReduceOp::kAvg && !is_floating(part.dtype)) {
      throw InvalidArgument({.what = fmt::format("{} cannot be averaged", name_of(part.dtype)),
                             .where = describe(record),
                             .hint = "average floating types; sum integers"});
    }
  }
  if (record.operation == Operation::kBroadcast && (record.root < 0 || record.root >= size)) {
    throw InvalidArgument({.what = fmt::format("root {} of {} ranks", record.root, size),
                           .where = describe(record),
                           .hint = "ranks are 0 to size() - 1"});
  }
}

Share share_of(int rank, int size, int64_t numel) {
  const int64_t share = round_up(divide_up(numel, size), 64);
  const int64_t begin = std::min(numel, rank * share);
  return {begin, std::min(numel, begin + share)};
}

}  // namespace fsdp
