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
      throw InvalidArgument({.what = fmt::format("reduce: a run has {} sources, expected 1 to {}",
                                                 run.sources.size(), kMostSources),
                             .hint = "pass one source per rank"});
    }
    if (op == ReduceOp::kAvg && !is_floating(run.dtype)) {
      throw InvalidArgument({.what = fmt::format("reduce cannot average {}", name_of(run.dtype)),
                             .hint = "use a floating type, or ReduceOp::kSum"});
    }
  }
  kernels_of(stream).reduce(stream, runs, op);
}

}  // namespace kernels
}  // namespace fsdp
