#include "shard/gradient_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "fsdp/error.h"
#include "shard/parameter_seats.h"

namespace fsdp {

void GradientTable::add(int parameter, const at::Tensor& gradient,
                        const kernels::AccumulateRun& run) {
  Stream& compute = *unit_.shared.compute;
  if (compute.is_inline()) return copy({&run, 1}, parameter);
  if (captured_on_ != &compute) issue();
  captured_on_ = &compute;
  const bool is_small = run.numel * size_of(run.source_dtype) < kSmallBytes;
  // An inference tensor has no version, by which a change would be found.
  const int64_t version = gradient.is_inference() ? kNoVersion : gradient._version();
  waiting_.push_back({parameter, gradient, version, run});
  if (!is_small || version == kNoVersion || waiting_.size() == kMost) issue();
}

bool GradientTable::has(const void* destination) const {
  return std::ranges::any_of(
      waiting_, [&](const Waiting& waiting) { return waiting.run.destination == destination; });
}

void GradientTable::issue() {
  if (waiting_.empty()) return;
  std::vector<Waiting> waiting = std::exchange(waiting_, {});
  std::vector<kernels::AccumulateRun> runs;
  for (const Waiting& each : waiting) {
    require_unchanged(each);
    runs.push_back(each.run);
  }
  copy(runs, waiting.front().parameter);
  // The stream to which LibTorch's memory belongs does not wait for the one that reads it now.
  Stream& compute = *unit_.shared.compute;
  if (&compute != captured_on_) {
    compute.hold(std::make_shared<const std::vector<Waiting>>(std::move(waiting)));
  }
}

void GradientTable::copy(std::span<const kernels::AccumulateRun> runs, int first) const {
  ShardContext& shared = unit_.shared;
  const std::string& subject = runs.size() == 1 ? unit_.layout.parameters()[first].fqn : unit_.fqn;
  const ContextSpan span = shared.span(*shared.compute, "capture", subject);
  kernels::accumulate(*shared.compute, runs, shared.capture_scale());
}

void GradientTable::require_unchanged(const Waiting& waiting) const {
  const at::Tensor& gradient = waiting.gradient;
  if (waiting.version == kNoVersion || gradient._version() == waiting.version) return;
  throw StateError(
      {.what = fmt::format("the gradient of '{}' was changed in place after it arrived",
                           unit_.layout.parameters()[waiting.parameter].fqn),
       .where = name_of_unit(unit_.fqn),
       .cause = "small gradients of a unit are copied together, when it closes",
       .hint = "let hooks return a new tensor"});
}

}  // namespace fsdp
