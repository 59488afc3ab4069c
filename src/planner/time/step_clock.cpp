#include "planner/time/step_clock.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "planner/time/operator_key.h"
#include "planner/time/timed_stream.h"

namespace fsdp {

void StepClock::issue_collective(const TimedGroup& group, const Collective& collective,
                                 Stream& stream) {
  // Small values of the host are exchanged on the CPU's own stream.
  auto* const timed = dynamic_cast<TimedStream*>(&stream);
  if (timed == nullptr || group.ranks == 1) return;
  const CollectiveTime time =
      collective_time(rates_, group, collective.operation, collective.parts);
  const bool is_barrier = collective.operation == Operation::kBarrier;
  if (is_barrier && time.transfer_ns == 0) return;  // only measured times include barriers
  const bool reduces = traits_of(collective.operation).reduces;
  const TimedKind kind = reduces ? TimedKind::kReduce : TimedKind::kGather;
  call_kernel();
  const TimedKind latency = reduces ? TimedKind::kReduceLatency : TimedKind::kGatherLatency;
  timed->issue({.kind = latency, .ns = time.latency_ns, .collective = true});
  timed->issue({.kind = kind,
                .ns = time.transfer_ns,
                .on_wire = time.shares_wire,
                .collective = true,
                .cores = time.cores});
  if (is_barrier) return;
  CollectiveUse& use = reduces ? counts_.reductions : counts_.gathers;
  ++use.count;
  use.ring_steps = std::max(use.ring_steps, time.ring_steps);
  (time.net_limits ? use.net_ns : use.host_ns) += std::llround(time.transfer_ns);
}

void StepClock::call_kernel() {
  const double own = rates_.host_ns_per_kernel;
  clock_.spend_on_host(own > 0 ? own : rates_.host_ns_per_call);
}

void StepClock::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!watches_) return;
  pending_ = OperatorPrice(op, stack);
  played_ns_.reset();
  if (rates_.operators.empty()) return;
  const auto found = rates_.operators.find(operator_key(op, stack));
  if (found != rates_.operators.end()) played_ns_ = found->second;
}

void StepClock::after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!watches_) return;
  pending_.add_results(op, stack);
  SeenOperator seen{.price = std::move(pending_), .played_ns = played_ns_, .hides_products = {}};
  if (seen.price.hides_products()) seen.hides_products = op.schema().name();
  run(seen);
  if (observer_) observer_(std::move(seen));
}

// On the CPU a measured time includes that of the rank's thread, so views have one, too.
void StepClock::run(const SeenOperator& op) {
  const bool has_host_time = is_cpu_ && op.played_ns;
  if (!has_host_time) clock_.spend_on_host(rates_.host_ns_per_call);
  if (!op.price.has_work() && !has_host_time) return;
  TimedWork work{.kind = op.price.kind(), .ns = op.played_ns.value_or(0)};
  if (!op.played_ns) work = op.price.work(rates_);
  work.cores = cores_used();
  clock_.issue(compute_, work);
  counts_.flops += op.price.has_work() ? op.price.flops() : 0;
  Priced& priced = op.played_ns           ? counts_.played
                   : op.price.flops() > 0 ? counts_.by_shape
                                          : counts_.by_bytes;
  ++priced.count;
  priced.ns += work.ns;
  const std::string& name = op.hides_products;
  if (!op.played_ns && !name.empty() && std::ranges::find(unpriced_, name) == unpriced_.end()) {
    unpriced_.push_back(name);
  }
}

void StepClock::end_step() {
  counts_at_end_ = std::exchange(counts_, {});
  clock_.tell(compute_, [this](double ns) {
    ends_.push_back({.at_ns = ns, .seen = clock_.seen(), .busy = clock_.busy()});
  });
}

StepTime StepClock::last_step() {
  clock_.run();
  const StepEnd &begin = ends_.at(ends_.size() - 2), &end = ends_.back();
  const auto between = [&](const KindTimes StepEnd::*times,
                           std::initializer_list<TimedKind> kinds) {
    double ns = 0;
    for (const TimedKind kind : kinds) {
      ns += (end.*times)[static_cast<size_t>(kind)] - (begin.*times)[static_cast<size_t>(kind)];
    }
    return static_cast<int64_t>(std::llround(ns));
  };
  const auto seen = [&](auto... kinds) { return between(&StepEnd::seen, {kinds...}); };
  const auto busy = [&](auto... kinds) { return between(&StepEnd::busy, {kinds...}); };
  using enum TimedKind;
  StepTime time{.total_ns = std::llround(end.at_ns - begin.at_ns),
                .products_ns = seen(kProducts),
                .attention_ns = seen(kAttention),
                .operators_ns = seen(kOperators),
                .kernels_ns = seen(kKernels),
                .optimizer_ns = seen(kOptimizer),
                .exposed_gather_ns = seen(kGather, kGatherLatency, kGatherKernels),
                .exposed_reduce_ns = seen(kReduce, kReduceLatency, kReduceKernels),
                .exposed_transfer_ns = seen(kTransfer),
                .host_ns = seen(kHost),
                .gather_ns = busy(kGather, kGatherLatency, kGatherKernels),
                .reduce_ns = busy(kReduce, kReduceLatency, kReduceKernels),
                .gathers = counts_at_end_.gathers,
                .reductions = counts_at_end_.reductions,
                .flops = counts_at_end_.flops};
  time.gathers.exposed_latency_ns = seen(kGatherLatency);
  time.gathers.exposed_kernels_ns = seen(kGatherKernels);
  time.reductions.exposed_latency_ns = seen(kReduceLatency);
  time.reductions.exposed_kernels_ns = seen(kReduceKernels);
  time.basis =
      fmt::format("rates of {}: {}; {}", rates_.machine, rates_.source, operators_by_origin());
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

// Returns how many operators, and which part of their time, have each origin.
std::string StepClock::operators_by_origin() const {
  const Counts& counts = counts_at_end_;
  const double all = counts.played.ns + counts.by_shape.ns + counts.by_bytes.ns;
  const auto part = [&](const Priced& priced) {
    return fmt::format("{} ({:.0f} %)", priced.count, all > 0 ? 100 * priced.ns / all : 0);
  };
  std::string text = "operators and their time: ";
  if (!rates_.operators.empty()) text += part(counts.played) + " measured, ";
  return text +
         fmt::format("{} by operations, {} by bytes", part(counts.by_shape), part(counts.by_bytes));
}

}  // namespace fsdp
