// Norm and non-finite decision over the main gradients of all ranks.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "comm/mesh_state.h"
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

// The first parameter of the segment, by index in its unit, with a gradient that is not finite.
int first_nonfinite_in(const MainSegment& segment) {
  for (const Interval& interval : segment.intervals) {
    for (int64_t i = interval.offset; i < interval.offset + interval.numel; ++i) {
      if (!std::isfinite(segment.grad[i])) return interval.parameter;
    }
  }
  return 0;
}

}  // namespace

// The first of what the ranks found, on every rank. Rare, so a collective of its own.
std::string EngineState::name_first_nonfinite(int64_t found_here) {
  int64_t total = 0;
  for (const auto& unit : units) total += static_cast<int64_t>(unit->shard->tensors().size());
  double from_end = found_here >= 0 ? static_cast<double>(total - found_here) : 0.0;
  if (context->moves.cuts_main()) {
    const CollectivePart part{&from_end, &from_end, 1, DType::kFloat64};
    context->reduce().all_reduce(
        {&part, 1}, ReduceOp::kMax,
        context->mesh.state().order().next(Operation::kAllReduce, part.numel,
                                           "first non-finite gradient"),
        *context->reduce_stream);
    context->reduce_stream->synchronize();
  }
  int64_t index = total - static_cast<int64_t>(from_end);
  for (const auto& unit : units) {
    const auto& parameters = unit->shard->layout().parameters();
    if (index < static_cast<int64_t>(parameters.size())) {
      const std::string& fqn = unit->shard->fqn();
      return fmt::format("unit '{}', parameter '{}'", fqn.empty() ? "(root)" : fqn,
                         parameters[static_cast<size_t>(index)].fqn);
    }
    index -= static_cast<int64_t>(parameters.size());
  }
  return {};
}

GradientReport EngineState::measure_gradients(double norm_type) {
  require_between_passes("measuring gradients");
  const StreamSpan span = context->span(*context->compute, "gradient norm", "");
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
  auto& result = *static_cast<kernels::GradNorm*>(norm_.data());
  kernels::grad_norm(*context->compute, table, type, &result);
  context->compute->synchronize();
  GradientReport report;
  int64_t first = -1;  // among all parameters of the engine, on this rank
  if (result.first_non_finite >= 0) {
    const auto& [owner, segment] = owners[static_cast<size_t>(result.first_non_finite)];
    first = first_nonfinite_in(segment);
    for (int i = 0; i < owner->index; ++i) {
      first += static_cast<int64_t>(units[i]->shard->tensors().size());
    }
  }
  if (context->moves.cuts_main()) {
    const CollectivePart part{&result, &result, kernels::GradNorm::kReducedNumel, DType::kFloat64};
    const ReduceOp op = type == kernels::NormType::kInf ? ReduceOp::kMax : ReduceOp::kSum;
    const ExposedTimer timer(*context);
    context->reduce().all_reduce(
        {&part, 1}, op,
        context->mesh.state().order().next(Operation::kAllReduce, part.numel, "gradient norm"),
        *context->reduce_stream);
    context->reduce_stream->synchronize();
  }
  report.finite = result.non_finite == 0;
  if (!report.finite) report.first_nonfinite = name_first_nonfinite(first);
  float norm = 0;
  kernels::clip_coefficient(*context->compute, &result, type, 1.0, {.norm = &norm});
  report.norm = norm;
  return report;
}

}  // namespace fsdp
