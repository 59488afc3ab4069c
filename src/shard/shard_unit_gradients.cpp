// The gradient half of ShardUnit: from autograd's hook to the main gradient.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fsdp/error.h"
#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/fill.h"
#include "shard/shard_segment.h"
#include "shard/shard_unit.h"

namespace fsdp {
namespace {

// True if element i in the parameter's memory order is element i in the gradient's.
bool lies_like(const at::Tensor& gradient, const ParameterSpec& spec) {
  for (size_t dim = 0; dim < spec.shape.size(); ++dim) {
    if (spec.shape[dim] != 1 && gradient.stride(static_cast<int64_t>(dim)) != spec.strides[dim]) {
      return false;
    }
  }
  return true;
}

// Dimensions from the slowest to the fastest in the parameter's memory.
std::vector<int64_t> memory_order(const ParameterSpec& spec) {
  std::vector<int64_t> order(spec.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return spec.strides[a] > spec.strides[b]; });
  return order;
}

}  // namespace

int64_t ShardUnit::reduce_slot_bytes() const {
  // Captured straight into the main gradient (see open_gradients).
  if (!lanes_.shards_parameters() && lanes_.reduce_dtype == DType::kFloat32) return 0;
  return layout_.gradient_bytes(lanes_.reduce_dtype);
}

std::byte* ShardUnit::gradient_base(int segment) const {
  if (reduce_slot_ != nullptr) {
    return reduce_slot_->at(layout_.gradient_offset_bytes(segment, lanes_.reduce_dtype));
  }
  return main_gradients_[segment] != nullptr ? main_gradients_[segment]->at(0) : nullptr;
}

void ShardUnit::open_gradients(bool will_reduce) {
  if (!layout_.has_trainable()) return;
  if (gradient_state_ == GradientState::kCapturing) return;
  adopt_user_gradients();
  check_not_spoiled();
  adds_to_earlier_ = gradient_state_ == GradientState::kKept;
  gradient_state_ = GradientState::kCapturing;
  if (adds_to_earlier_) return;
  std::fill(arrived_.begin(), arrived_.end(), 0);
  const bool whole_fp32 = !lanes_.shards_parameters() && lanes_.reduce_dtype == DType::kFloat32;
  if (whole_fp32 && (lanes_.one_rank() || (will_reduce && main_gradients_.empty()))) {
    // Straight into the main gradient. On one rank later micro-batches add to it where it lies.
    if (!main_gradients_.empty()) {
      adds_to_earlier_ = true;
      std::fill(arrived_.begin(), arrived_.end(), 1);
      return;
    }
    take_main_gradients(*lanes_.compute);
    return zero_gaps();
  }
  reduce_slot_ = lanes_.reduce_slots.acquire(layout_.gradient_bytes(lanes_.reduce_dtype));
  lanes_.compute->wait(reduce_slot_->released);  // wait 6
  zero_gaps();
}

// Gaps and padding travel with every reduction and end in the main gradient: they are always zero.
void ShardUnit::zero_gaps() {
  std::vector<kernels::FillRun> runs;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const SegmentLayout& layout = segments_[i]->layout;
    if (!layout.trainable) continue;
    std::byte* base = gradient_base(static_cast<int>(i));
    for (const Gap& gap : layout.gaps) {
      runs.push_back(
          {base + gap.offset * size_of(lanes_.reduce_dtype), gap.numel, lanes_.reduce_dtype});
    }
  }
  kernels::fill_zero(*lanes_.compute, runs);
}

void ShardUnit::capture(int parameter, const at::Tensor& gradient) {
  if (!gradient.defined()) return;  // counts as missing: zero-filled when the unit closes
  const ParameterSpec& spec = layout_.parameters()[parameter];
  const auto dtype = torch_compat::dtype_of(gradient.scalar_type());
  if (gradient.layout() != at::kStrided || !dtype || !is_floating(*dtype)) {
    throw InvalidArgument({.what = fmt::format("the gradient of '{}' is sparse or of type {}",
                                               spec.fqn, c10::toString(gradient.scalar_type())),
                           .where = fmt::format("unit '{}'", fqn_),
                           .cause = {},
                           .hint = "build the embedding with sparse(false)"});
  }
  const int segment = layout_.segment_of(parameter);
  const DType to = lanes_.reduce_dtype;
  std::byte* place = gradient_base(segment) + layout_.place_of(parameter).offset * size_of(to);
  const bool adds = arrived_[parameter] != 0;
  arrived_[parameter] = 1;
  Stream& stream = *lanes_.compute;
  const StreamSpan span = lanes_.span(*lanes_.compute, "capture", spec.fqn);
  if (lies_like(gradient, spec)) {
    kernels::accumulate(stream,
                        std::vector<kernels::AccumulateRun>{{.source = gradient.const_data_ptr(),
                                                             .destination = place,
                                                             .numel = spec.numel,
                                                             .source_dtype = *dtype,
                                                             .destination_dtype = to,
                                                             .overwrite = !adds}},
                        lanes_.gradient_scale);
    return;
  }
  at::Tensor ordered = gradient.permute(memory_order(spec));
  if (ordered.dim() > kernels::kMaxDims) ordered = ordered.contiguous().flatten();
  kernels::StridedSource source{.data = ordered.const_data_ptr(), .dtype = *dtype};
  source.dims = static_cast<int>(ordered.dim());
  std::copy(ordered.sizes().begin(), ordered.sizes().end(), source.sizes.begin());
  std::copy(ordered.strides().begin(), ordered.strides().end(), source.strides.begin());
  if (adds) {
    kernels::accumulate_strided(stream, source, place, to, lanes_.gradient_scale);
  } else {
    kernels::cast_pack_strided(stream, source, place, to, lanes_.gradient_scale);
  }
}

void ShardUnit::zero_missing() {
  std::vector<kernels::FillRun> runs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const int segment = layout_.segment_of(parameter);
    if (!segments_[segment]->layout.trainable || arrived_[i]) continue;
    const PlacedParameter& place = layout_.place_of(parameter);
    runs.push_back({gradient_base(segment) + place.offset * size_of(lanes_.reduce_dtype),
                    place.numel, lanes_.reduce_dtype});
  }
  kernels::fill_zero(*lanes_.compute, runs);
}

void ShardUnit::reduce() {
  if (gradient_state_ == GradientState::kNone) return;
  zero_missing();
  lanes_.compute->record(captured_);
  const ExposedTimer timer(lanes_);
  lanes_.reduce_stream->wait(captured_);  // wait 5
  const StreamSpan span = lanes_.span(*lanes_.reduce_stream, "reduce", fqn_);
  const bool straight = reduce_slot_ == nullptr;
  if (!straight) adopt_user_gradients();
  const bool first = straight || main_gradients_.empty();
  if (main_gradients_.empty()) take_main_gradients(*lanes_.reduce_stream);
  const DType dtype = lanes_.reduce_dtype;
  // The first fp32 reduction of a step lands in the main gradient; else in place, then it is added.
  const bool lands = lanes_.shards_parameters() && first && dtype == DType::kFloat32;

  std::vector<CollectivePart> parts;
  std::vector<kernels::AccumulateRun> adds;
  int64_t numel = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const SegmentLayout& layout = segments_[i]->layout;
    if (!layout.trainable) continue;
    std::byte* whole = gradient_base(static_cast<int>(i));
    std::byte* own = whole + lanes_.shard_rank() * layout.slice_numel * size_of(dtype);
    Slot* main = main_gradients_[i];
    if (main == nullptr) continue;  // a segment of empty parameters
    parts.push_back({whole, lands ? main->at(0) : own, layout.slice_numel, dtype});
    if (!lands && !straight) {
      adds.push_back({own, main->at(0), layout.slice_numel, dtype, DType::kFloat32, first});
    }
    numel += layout.slice_numel;
  }
  if (lanes_.shards_parameters()) {
    lanes_.reduce().reduce_scatter(
        parts, lanes_.reduce_op, next_tag(Operation::kReduceScatter, numel), *lanes_.reduce_stream);
  } else if (lanes_.all_reduces_gradients()) {
    lanes_.reduce().all_reduce(parts, lanes_.reduce_op, next_tag(Operation::kAllReduce, numel),
                               *lanes_.reduce_stream);
  }
  ++lanes_.reduces;
  if (!adds.empty()) kernels::accumulate(*lanes_.reduce_stream, adds);
  if (reduce_slot_ != nullptr) {
    poison(reduce_slot_, /*gradients=*/true, *lanes_.reduce_stream);
    lanes_.reduce_stream->record(reduce_slot_->released);
    lanes_.reduce_slots.release(reduce_slot_);
    reduce_slot_ = nullptr;
  }
  gradient_state_ = GradientState::kNone;
  if (!local_views_.empty()) attach_gradient_views();
}

void ShardUnit::keep_gradients() {
  if (gradient_state_ != GradientState::kCapturing) return;
  if (reduce_slot_ == nullptr) return reduce();  // one rank: the main gradient has it already
  gradient_state_ = GradientState::kKept;
}

void ShardUnit::drop_gradients() {
  if (reduce_slot_ != nullptr) {
    lanes_.compute->record(reduce_slot_->released);
    lanes_.reduce_slots.release(reduce_slot_);
    reduce_slot_ = nullptr;
  }
  gradient_state_ = GradientState::kNone;
}

void ShardUnit::abandon_gradients() {
  if (gradient_state_ == GradientState::kCapturing) {
    const bool straight = reduce_slot_ == nullptr;
    spoiled_ = spoiled_ || adds_to_earlier_;
    drop_gradients();
    if (straight && !adds_to_earlier_) zero_grad();
  }
  spoiled_ = spoiled_ || !main_gradients_.empty() || gradient_state_ == GradientState::kKept;
}

void ShardUnit::check_not_spoiled() const {
  if (!spoiled_) return;
  throw StateError({.what = "gradients of a backward that failed are mixed with others",
                    .where = fmt::format("unit '{}'", fqn_),
                    .cause = {},
                    .hint = "call zero_grad after catching an exception from backward"});
}

void ShardUnit::take_main_gradients(Stream& stream) {
  for (const auto& segment : segments_) {
    Slot* slot =
        segment->layout.trainable ? lanes_.main_gradients.acquire(segment->main.bytes()) : nullptr;
    if (slot != nullptr) stream.wait(slot->released);
    main_gradients_.push_back(slot);
  }
}

void ShardUnit::zero_grad() {
  for (Slot* slot : main_gradients_) {
    if (slot == nullptr) continue;
    lanes_.compute->record(slot->released);
    lanes_.main_gradients.release(slot);
  }
  main_gradients_.clear();
  spoiled_ = false;
  for (at::Tensor& view : local_views_) view.mutable_grad() = at::Tensor();
  if (gradient_state_ == GradientState::kKept) drop_gradients();
}

std::vector<MainSegment> ShardUnit::main_segments() {
  adopt_user_gradients();
  check_not_spoiled();
  std::vector<MainSegment> result;
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = *segments_[i];
    if (!segment.layout.trainable) continue;
    Slot* gradient = main_gradients_.empty() ? nullptr : main_gradients_[i];
    result.push_back(
        {.param = static_cast<float*>(segment.main.data()),
         .grad = gradient != nullptr ? static_cast<float*>(gradient->buffer.data()) : nullptr,
         .resident_copy = segment.resident.data(),
         .copy_dtype = segment.layout.dtype,
         .numel = segment.layout.slice_numel,
         .intervals = layout_.intervals(static_cast<int>(i), lanes_.shard_rank())});
  }
  return result;
}

const std::vector<at::Tensor>& ShardUnit::local_views() {
  if (!local_views_.empty()) return local_views_;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Segment& segment = *segments_[layout_.segment_of(static_cast<int>(i))];
    // A view of the main shard shares its version counter: in-place optimizers are noticed.
    at::Tensor view = segment.main_tensor.narrow(0, local_[i].offset, local_[i].numel);
    view.set_requires_grad(segment.layout.trainable);
    local_views_.push_back(std::move(view));
  }
  for (const auto& segment : segments_) segment->seen_content = segment->content();
  if (!main_gradients_.empty()) attach_gradient_views();
  return local_views_;
}

// Views that were taken to load or print values and let go since need no digest a forward. With a
// main gradient they stay: their `.grad` may be the user's.
void ShardUnit::forget_unused_views() {
  if (local_views_.empty() || !main_gradients_.empty()) return;
  std::vector<size_t> own(segments_.size(), 1);  // tensors on a main shard: main_tensor and views
  for (size_t i = 0; i < local_views_.size(); ++i) {
    if (local_views_[i].use_count() > 1) return;
    ++own[layout_.segment_of(static_cast<int>(i))];
  }
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i]->main_tensor.storage().use_count() > own[i]) return;  // a view of a view
  }
  local_views_.clear();
}

void ShardUnit::attach_gradient_views() {
  if (main_gradients_.empty()) return;
  for (size_t i = 0; i < local_views_.size(); ++i) {
    const int segment = layout_.segment_of(static_cast<int>(i));
    if (!segments_[segment]->layout.trainable || local_views_[i].mutable_grad().defined()) continue;
    // Frozen since: plain optimizers skip what has no gradient.
    if (!parameters_[i].requires_grad()) continue;
    Slot* slot = main_gradients_[segment];
    float* data = slot != nullptr ? static_cast<float*>(slot->buffer.data()) : nullptr;
    local_views_[i].mutable_grad() =
        torch_compat::wrap(data != nullptr ? data + local_[i].offset : nullptr, local_[i].numel,
                           DType::kFloat32, at::kCPU);
  }
}

// What torch::optim or the user did to `.grad` since the views were attached: cleared ones become
// zero, or hand the main gradient back if all were cleared; replaced ones are copied in.
void ShardUnit::adopt_user_gradients() {
  if (local_views_.empty() || main_gradients_.empty()) return;
  bool any = false;
  for (size_t i = 0; i < local_views_.size(); ++i) {
    const bool trainable = segments_[layout_.segment_of(static_cast<int>(i))]->layout.trainable;
    any = any || (trainable && local_views_[i].mutable_grad().defined());
  }
  if (!any) return zero_grad();
  const at::NoGradGuard no_grad;
  lanes_.reduce_stream->synchronize();  // the main gradient may still be written there
  for (size_t i = 0; i < local_views_.size(); ++i) {
    const int segment = layout_.segment_of(static_cast<int>(i));
    if (!segments_[segment]->layout.trainable || local_[i].numel == 0) continue;
    float* place = static_cast<float*>(main_gradients_[segment]->buffer.data()) + local_[i].offset;
    at::Tensor& gradient = local_views_[i].mutable_grad();
    if (gradient.defined() && gradient.const_data_ptr() == place) continue;
    at::Tensor here = torch_compat::wrap(place, local_[i].numel, DType::kFloat32, at::kCPU);
    if (gradient.defined()) {
      here.copy_(gradient);
    } else {
      here.zero_();
    }
    if (parameters_[i].requires_grad()) gradient = here;
  }
}

}  // namespace fsdp
