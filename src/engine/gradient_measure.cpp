#include "engine/gradient_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>

#include "engine/reduce_scalars.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

kernels::NormType norm_type_of(double norm_type) {
  if (norm_type == 1.0) return kernels::NormType::kOne;
  if (norm_type == 2.0) return kernels::NormType::kTwo;
  if (norm_type == std::numeric_limits<double>::infinity()) return kernels::NormType::kInf;
  throw InvalidArgument({.what = fmt::format("norm_type {} is not supported", norm_type),
                         .hint = "use 1, 2 or infinity"});
}

}  // namespace

// The block contains a Found with this rank's values, a Found with the values reduced over the
// ranks, and then norm, coefficient and found_inf.
StepScalars::StepScalars(const ShardContext& context, int ranks, int rank)
    : ranks_(ranks),
      rank_(rank),
      memory_(context.main->allocate_own(2 * found_bytes() +
                                         3 * static_cast<int64_t>(sizeof(float)))) {}

StepScalars::Values StepScalars::read(Stream& stream) const {
  Values values;
  std::vector<double> found(static_cast<size_t>(numel()));
  stream.read(&values.norm, norm(), sizeof values.norm);
  stream.read(found.data(), everywhere().values, found_bytes());
  values.first.assign(found.begin() + kHead, found.end());
  values.finite = Found{found.data()}.norm()->non_finite == 0;
  return values;
}

std::vector<kernels::GradSegment> GradientMeasure::table_of(const ChosenParameters& chosen) const {
  std::vector<kernels::GradSegment> table;
  int64_t position = 0;  // counts the elements of all main shards of this rank
  const int rank = context_.mesh.rank();
  const bool is_cut = cut();
  for (const auto& unit : units_) {
    const ShardLayout& layout = unit->shard->layout();
    std::vector<int64_t> begins;
    for (const SegmentLayout& segment : layout.segments()) {
      begins.push_back(position);
      position += segment.slice_numel;
    }
    if (!chosen.any_of(unit->index)) continue;
    // Several ranks may own the same slice. Only the lowest of these ranks measures it, so that it
    // counts once.
    const bool tells = !is_cut || unit->shard->collectives().first_holder(rank) == rank;
    for (const MainSegment& main : unit->shard->main_segments()) {
      if (main.grad == nullptr || !tells) continue;
      const int64_t begin = begins[main.segment];
      const std::vector<PlacedParameter>& placed = layout.segments()[main.segment].parameters;
      const auto is_chosen = [&](const PlacedParameter& each) {
        return chosen.has(unit->index, each.parameter);
      };
      // If all parameters of the slice are chosen, the whole slice is one segment of the table.
      // Gaps and padding are zero and add nothing to a norm.
      if (std::ranges::all_of(placed, is_chosen)) {
        table.push_back({main.grad, main.numel, begin});
        continue;
      }
      for (const PlacedParameter& each : placed) {
        const Interval& own = unit->shard->main().local(each.parameter);
        if (own.numel == 0 || !is_chosen(each)) continue;
        table.push_back({main.grad + own.offset, own.numel, begin + own.offset});
      }
    }
  }
  return table;
}

GradientMeasure::Measured GradientMeasure::measure(double norm_type, double max_norm,
                                                   const ChosenParameters& chosen) {
  const kernels::NormType type = norm_type_of(norm_type);
  // Written with ! so that NaN is refused, too: every comparison with NaN is false.
  if (!(max_norm >= 0)) {
    throw InvalidArgument(
        {.what = fmt::format("clip_grad_norm: max_norm is {}, expected 0 or more", max_norm),
         .hint = "pass 0 or more; pass infinity to clip nothing"});
  }
  const bool is_cut = cut();
  const std::vector<kernels::GradSegment> table = table_of(chosen);
  auto measurement = std::make_shared<GradientReport::Measurement>();
  measurement->owner = this;
  const std::shared_ptr<StepScalars> taken = take_scalars();
  measurement->scalars = taken;
  // If main state is in host memory, this blocks until the last sums have been written to the main
  // gradients.
  context_.main->settle();
  Stream& stream = context_.main->stream();
  measurement->measured_on = &stream;
  const StepScalars& scalars = *taken;
  const int64_t scratch_bytes = kernels::norm_scratch_bytes(stream, table);
  if (scratch_.bytes() < scratch_bytes) {
    stream.hold(std::make_shared<Buffer>(std::move(scratch_)));  // an earlier norm may still use it
    scratch_ = context_.main->allocate_own(scratch_bytes);
  }
  kernels::grad_norm(stream, table, type,
                     {.norm = scalars.here().norm(),
                      .first_non_finite = scalars.own_first(),
                      .scratch = scratch_.data()});
  if (is_cut) reduce(scalars, type);
  kernels::clip_coefficient(stream, scalars.everywhere().norm(), type, max_norm,
                            {.norm = scalars.norm(),
                             .coefficient = scalars.coefficient(),
                             .found_inf = scalars.found_inf()});
  // When the engine is destroyed, settle() reads the reports that were not read before.
  reports_.push_back(measurement);
  return {GradientReport(std::move(measurement)), taken};
}

void GradientMeasure::reduce(const StepScalars& scalars, kernels::NormType type) const {
  const CollectivePart part{scalars.here().values, scalars.everywhere().values, scalars.numel(),
                            DType::kFloat64};
  // Each rank sets its own entry (the position that it found) and leaves zeros in the entries of
  // other ranks. A sum or a maximum then combines all of them.
  const ReduceOp op = type == kernels::NormType::kInf ? ReduceOp::kMax : ReduceOp::kSum;
  reduce_scalars(context_, part, op, "gradient norm");
}

// Returns a block that neither a step nor a report holds, or a new block. A block can be reused
// safely. The waits between streams order a step's kernels after the kernels of the previous step,
// and a report releases its block only after reading it.
std::shared_ptr<StepScalars> GradientMeasure::take_scalars() {
  std::erase_if(reports_, [](const auto& each) { return each.expired(); });
  for (const auto& each : scalars_) {
    if (each.use_count() > 1) continue;
    // Orders the reuse of the block after its last use by another thread.
    std::atomic_thread_fence(std::memory_order_acquire);
    return each;
  }
  const bool is_cut = cut();
  return scalars_.emplace_back(std::make_shared<StepScalars>(
      context_, is_cut ? context_.mesh.world_size() : 1, is_cut ? context_.mesh.rank() : 0));
}

std::shared_ptr<const StepScalars> GradientMeasure::scalars_of(const GradientReport& report) {
  if (report.measurement_ == nullptr) return nullptr;
  const std::lock_guard lock(report.measurement_->mutex);
  return report.measurement_->scalars;
}

bool GradientMeasure::cut() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const auto& unit) { return unit->shard->collectives().cuts_main(); });
}

void GradientMeasure::settle() noexcept {
  for (const auto& each : reports_) {
    if (const auto held = each.lock()) held->settle();
  }
  reports_.clear();
}

std::pair<int, int> GradientMeasure::owner_of(int rank, int64_t position) const {
  for (const auto& unit : units_) {
    const ShardLayout& layout = unit->shard->layout();
    for (size_t i = 0; i < layout.segments().size(); ++i) {
      const int64_t numel = layout.segments()[i].slice_numel;
      if (position >= numel) {
        position -= numel;
        continue;
      }
      int owner = 0;
      const int slice = unit->shard->collectives().main_rank(rank);
      for (const Interval& interval : layout.intervals(static_cast<int>(i), slice)) {
        // Intervals are in ascending order. The last interval that begins at or before the position
        // contains it.
        if (interval.numel > 0 && interval.offset <= position) owner = interval.parameter;
      }
      return {unit->index, owner};
    }
  }
  return {0, 0};
}

std::string GradientMeasure::name_first(const std::vector<double>& first_by_rank) const {
  // Each rank's value is a position in its own shards. Every rank computes the lowest unit and
  // parameter of all these positions, so all ranks get the same result.
  std::optional<std::pair<int, int>> first;
  for (size_t rank = 0; rank < first_by_rank.size(); ++rank) {
    if (first_by_rank[rank] == 0) continue;
    const auto owner =
        owner_of(static_cast<int>(rank), static_cast<int64_t>(first_by_rank[rank]) - 1);
    first = first ? std::min(*first, owner) : owner;
  }
  if (!first) return {};
  const ShardUnit& shard = *units_[first->first]->shard;
  return fmt::format("{}, parameter '{}'", name_of_unit(shard.fqn()),
                     shard.layout().parameters()[first->second].fqn);
}

GradientReport::Measurement::Values GradientReport::Measurement::read() {
  const std::lock_guard lock(mutex);
  if (values) return *values;
  if (owner == nullptr) {
    throw StateError(
        {.what = "cannot read a GradientReport: its engine was destroyed",
         .cause = "the engine tried to read the report's values when it was destroyed, and failed",
         .hint = "read norm() and finite() before the engine is destroyed"});
  }
  const StepScalars::Values found =
      with_place([] { return "gradient norm"; }, [&] { return scalars->read(*measured_on); });
  values = Values{.norm = found.norm,
                  .finite = found.finite,
                  .first_nonfinite = found.finite ? std::string() : owner->name_first(found.first)};
  scalars = nullptr;
  return *values;
}

void GradientReport::Measurement::settle() noexcept {
  try {
    read();
  } catch (const std::exception&) {  // ignored: the failed collective has thrown it already
  }
  const std::lock_guard lock(mutex);
  owner = nullptr;
  scalars = nullptr;
}

GradientReport::GradientReport() = default;
GradientReport::GradientReport(std::shared_ptr<Measurement> measurement)
    : measurement_(std::move(measurement)) {}

double GradientReport::norm() const { return measurement_ ? measurement_->read().norm : 0; }
bool GradientReport::finite() const { return measurement_ ? measurement_->read().finite : true; }
std::string GradientReport::first_nonfinite() const {
  return measurement_ ? measurement_->read().first_nonfinite : std::string();
}

}  // namespace fsdp
