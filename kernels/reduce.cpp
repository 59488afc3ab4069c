#include "kernels/reduce.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/kernel_table.h"

namespace fsdp {

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown";
}

namespace kernels {

void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op) {
  for (const ReduceRun& run : runs) {
    if (run.sources.empty() || run.sources.size() > kMostSources) {
      throw InvalidArgument({.what = fmt::format("reduce: a run of {} sources", run.sources.size()),
                             .hint = fmt::format("1 to {}, one a rank", kMostSources)});
    }
    if (op == ReduceOp::kAvg && !is_floating(run.dtype)) {
      throw InvalidArgument({.what = fmt::format("reduce: the average of {}", name_of(run.dtype)),
                             .hint = "a floating dtype, or sum"});
    }
  }
  kernels_of(stream).reduce(stream, runs, op);
}

}  // namespace kernels
}  // namespace fsdp
