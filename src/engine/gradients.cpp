// Norm and non-finite decision over the main gradients of all ranks.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "engine/engine_state.h"
#include "fsdp/error.h"
#include "kernels/grad_norm.h"

namespace fsdp {
namespace {

kernels::NormType norm_type_of(double norm_type) {
  if (norm_type == 1.0) return kernels::NormType::kOne;
  if (norm_type == 2.0) return kernels::NormType::kTwo;
  if (norm_type == std::numeric_limits<double>::infinity()) return kernels::NormType::kInf;
  throw InvalidArgument({.what = fmt::format("norm_type {} is not supported", norm_type),
                         .where = {},
                         .cause = {},
                         .hint = "use 1, 2 or infinity"});
}

std::string name_first_nonfinite(const EngineUnit& unit, const MainSegment& segment) {
  for (const Interval& interval : segment.intervals) {
    for (int64_t i = interval.offset; i < interval.offset + interval.numel; ++i) {
      if (std::isfinite(segment.grad[i])) continue;
      const std::string& fqn = unit.shard->layout().parameters()[interval.parameter].fqn;
      return fmt::format("unit '{}', parameter '{}'", unit.shard->fqn(), fqn);
    }
  }
  return fmt::format("unit '{}', padding", unit.shard->fqn());
}

}  // namespace

GradientReport EngineState::measure_gradients(double norm_type) {
  const std::lock_guard lock(clock->mutex);
  const kernels::NormType type = norm_type_of(norm_type);
  std::vector<kernels::GradSegment> table;
  std::vector<std::pair<const EngineUnit*, MainSegment>> owners;
  for (const auto& unit : units) {
    for (MainSegment& segment : unit->shard->main_segments()) {
      if (segment.grad == nullptr) continue;
      table.push_back({segment.grad, segment.numel});
      owners.emplace_back(unit.get(), std::move(segment));
    }
  }
  kernels::GradNorm result;
  kernels::grad_norm(*lanes->compute, table, type, &result);
  GradientReport report;
  if (result.first_non_finite >= 0) {
    const auto& [unit, segment] = owners[static_cast<size_t>(result.first_non_finite)];
    report.first_nonfinite = name_first_nonfinite(*unit, segment);
  }
  if (lanes->shards_parameters()) {
    const CollectivePart part{&result, &result, kernels::GradNorm::kReducedNumel, DType::kFloat64};
    const ReduceOp op = type == kernels::NormType::kInf ? ReduceOp::kMax : ReduceOp::kSum;
    const ExposedTimer timer(lanes->exposed_comm_ns);
    lanes->reduce().all_reduce(
        {&part, 1}, op, lanes->mesh.next_tag(Operation::kAllReduce, part.numel, "gradient norm"),
        *lanes->reduce_stream);
    lanes->reduce_stream->synchronize();
  }
  report.finite = result.non_finite == 0;
  float norm = 0;
  kernels::clip_coefficient(*lanes->compute, &result, type, 1.0, {.norm = &norm});
  report.norm = norm;
  return report;
}

}  // namespace fsdp
