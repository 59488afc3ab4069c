#include "shard/gradient_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "libtorch/torch_compat.h"
#include "shard/gradient_order.h"
#include "shard/parameter_bindings.h"

namespace fsdp {

void GradientTable::add(int parameter, const at::Tensor& gradient, const Place& place) {
  const ParameterSpec& spec = unit_.layout.parameters()[parameter];
  // One launch processes its runs in any order, so a launch must not both copy to a destination and
  // add to it.
  if (!place.overwrites && has(place.at)) issue();
  if (!lies_like(gradient, spec)) return add_strided(parameter, gradient, place);
  add_in_order(parameter, gradient,
               {.source = gradient.const_data_ptr(),
                .destination = place.at,
                .numel = spec.numel,
                .source_dtype = *dtype_of(gradient.scalar_type()),
                .destination_dtype = place.dtype,
                .overwrite = place.overwrites});
}

// If the gradient has another memory order than the parameter (for example that of a transposed
// weight), it is permuted and copied by a kernel that reads strides. The gradient does not wait in
// the table, because a run has no strides.
void GradientTable::add_strided(int parameter, const at::Tensor& gradient,
                                const Place& place) const {
  const ParameterSpec& spec = unit_.layout.parameters()[parameter];
  ShardContext& shared = unit_.shared;
  const ContextSpan span = shared.streams.span(*shared.streams.compute, "capture", spec.fqn);
  at::Tensor ordered = gradient.permute(memory_order(spec));
  if (ordered.dim() > kernels::kMaxDims) ordered = ordered.contiguous().flatten();
  kernels::StridedSource source{.data = ordered.const_data_ptr(),
                                .dtype = *dtype_of(gradient.scalar_type())};
  source.dims = static_cast<int>(ordered.dim());
  std::ranges::copy(ordered.sizes(), source.sizes.begin());
  std::ranges::copy(ordered.strides(), source.strides.begin());
  const auto write = place.overwrites ? kernels::cast_pack_strided : kernels::accumulate_strided;
  write(*shared.streams.compute, source, place.at, place.dtype, shared.format.capture_scale());
}

void GradientTable::add_in_order(int parameter, const at::Tensor& gradient,
                                 const kernels::AccumulateRun& run) {
  Stream& compute = *unit_.shared.streams.compute;
  if (compute.is_inline()) return copy({&run, 1}, parameter);
  // One launch runs on one stream, so gradients that arrived on another compute stream are copied
  // first.
  if (captured_on_ != &compute) issue();
  captured_on_ = &compute;
  const bool is_small = run.numel * size_of(run.source_dtype) < kSmallBytes;
  // While the tensor waits to be copied, a user's hook may change it in place. Only its version
  // counter shows this. An inference tensor has no version, so it is copied at once.
  const int64_t version = gradient.is_inference() ? kNoVersion : gradient._version();
  waiting_.push_back({parameter, gradient, version, run});
  if (!is_small || version == kNoVersion || waiting_.size() == kMost) issue();
}

bool GradientTable::has(const std::byte* place) const {
  return std::ranges::any_of(
      waiting_, [&](const Waiting& waiting) { return waiting.run.destination == place; });
}

void GradientTable::issue() {
  if (waiting_.empty()) return;
  // The list is emptied first, so that no gradient waits any more after an error.
  std::vector<Waiting> waiting = std::exchange(waiting_, {});
  std::vector<kernels::AccumulateRun> runs;
  for (const Waiting& each : waiting) {
    require_unchanged(each);
    runs.push_back(each.run);
  }
  copy(runs, waiting.front().parameter);
  // After a tensor is freed, LibTorch reuses its memory for later work on the stream on which the
  // gradient arrived. If the compute stream is now another stream, the stream of arrival does not
  // wait for this copy. So compute holds the tensors until the copy is done.
  Stream& compute = *unit_.shared.streams.compute;
  if (&compute != captured_on_) {
    compute.hold(std::make_shared<const std::vector<Waiting>>(std::move(waiting)));
  }
}

void GradientTable::copy(std::span<const kernels::AccumulateRun> runs, int first) const {
  ShardContext& shared = unit_.shared;
  const std::string& subject = runs.size() == 1 ? unit_.layout.parameters()[first].fqn : unit_.fqn;
  const ContextSpan span = shared.streams.span(*shared.streams.compute, "capture", subject);
  kernels::accumulate(*shared.streams.compute, runs, shared.format.capture_scale());
}

void GradientTable::require_unchanged(const Waiting& waiting) const {
  const at::Tensor& gradient = waiting.gradient;
  if (waiting.version == kNoVersion || gradient._version() == waiting.version) return;
  throw StateError(
      {.what = fmt::format(
           "the gradient of parameter '{}' was changed in place after autograd computed it",
           unit_.layout.parameters()[waiting.parameter].fqn),
       .where = name_of_unit(unit_.fqn),
       .cause = "the engine copies small gradients of a unit together, at the end of the unit's "
                "backward",
       .hint = "let hooks return a new tensor instead"});
}

}  // namespace fsdp
