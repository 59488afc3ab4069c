#include "planner/time/step_clock.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "planner/time/timed_stream.h"

namespace fsdp {

void StepClock::issue_collective(const TimedGroup& group, const Collective& collective,
                                 Stream& stream) {
  // Small values of the host are exchanged on the CPU's own stream.
  auto* const timed = dynamic_cast<TimedStream*>(&stream);
  if (timed == nullptr || group.ranks == 1) return;
  const CollectiveTime time =
      collective_time(rates_, group, collective.operation, collective.parts);
  const bool reduces = traits_of(collective.operation).reduces;
  const TimedKind kind = reduces ? TimedKind::kReduce : TimedKind::kGather;
  clock_.spend_on_host(rates_.host_ns_per_call);
  timed->issue({.kind = kind, .ns = time.latency_ns, .collective = true});
  timed->issue({.kind = kind, .ns = time.transfer_ns, .on_wire = true, .collective = true});
}

void StepClock::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  pending_ = OperatorPrice(op, stack);
}

void StepClock::after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  pending_.add_results(op, stack);
  clock_.spend_on_host(rates_.host_ns_per_call);
  if (!pending_.has_work()) return;
  const TimedWork work = pending_.work(rates_);
  clock_.issue(compute_, work);
  counts_.flops += pending_.flops();
  ++(pending_.flops() > 0 ? counts_.by_shape : counts_.by_bytes);
  const std::string& name = op.schema().name();
  if (pending_.hides_products() && std::ranges::find(unpriced_, name) == unpriced_.end()) {
    unpriced_.push_back(name);
  }
}

void StepClock::end_step() {
  counts_at_end_.push_back(counts_);
  clock_.tell(compute_, [this](double ns) {
    ends_.push_back({.at_ns = ns, .seen = clock_.seen(), .busy = clock_.busy()});
  });
}

StepTime StepClock::last_step() {
  clock_.run();
  const StepEnd &begin = ends_.at(ends_.size() - 2), &end = ends_.back();
  const auto between = [&](const KindTimes StepEnd::*times, TimedKind kind) {
    const auto i = static_cast<size_t>(kind);
    return static_cast<int64_t>(std::llround((end.*times)[i] - (begin.*times)[i]));
  };
  const auto seen = [&](TimedKind kind) { return between(&StepEnd::seen, kind); };
  const Counts &first = counts_at_end_[counts_at_end_.size() - 2], &last = counts_at_end_.back();
  StepTime time{.total_ns = std::llround(end.at_ns - begin.at_ns),
                .products_ns = seen(TimedKind::kProducts),
                .attention_ns = seen(TimedKind::kAttention),
                .operators_ns = seen(TimedKind::kOperators),
                .kernels_ns = seen(TimedKind::kKernels),
                .optimizer_ns = seen(TimedKind::kOptimizer),
                .exposed_gather_ns = seen(TimedKind::kGather),
                .exposed_reduce_ns = seen(TimedKind::kReduce),
                .exposed_transfer_ns = seen(TimedKind::kTransfer),
                .host_ns = seen(TimedKind::kHost),
                .gather_ns = between(&StepEnd::busy, TimedKind::kGather),
                .reduce_ns = between(&StepEnd::busy, TimedKind::kReduce),
                .flops = last.flops - first.flops};
  time.basis = fmt::format("rates of {}: {}; {} operators by their operations, {} by their bytes",
                           rates_.machine, rates_.source, last.by_shape - first.by_shape,
                           last.by_bytes - first.by_bytes);
  if (rates_.thin_rows > 0) {
    time.basis += fmt::format(
        "; the rates come from {} published step{}, so the error of this time is unknown",
        rates_.thin_rows, rates_.thin_rows == 1 ? "" : "s");
  }
  if (!unpriced_.empty()) {
    time.basis += fmt::format("; the products in {} are not counted", fmt::join(unpriced_, ", "));
  }
  return time;
}

}  // namespace fsdp
