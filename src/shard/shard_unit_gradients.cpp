// The gradient half of ShardUnit: from autograd's hook to the main gradient.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

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

// True if nobody else holds the gradient or its memory. That of a Linear's weight is a view of a
// product that only this view holds.
bool is_sole(const at::Tensor& gradient) {
  if (gradient.use_count() != 1) return false;
  if (!gradient.is_view()) return gradient.storage().use_count() == 1;
  return gradient._base().use_count() == 1 && gradient.storage().use_count() == 2 &&
         gradient.storage().nbytes() == gradient.nbytes();
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

bool ShardUnit::captures_in_place() const {
  return !lanes_.shards_parameters() && lanes_.reduce_dtype == DType::kFloat32;
}

int64_t ShardUnit::reduce_slot_bytes() const {
  // Captured straight into the main gradient (see open_gradients).
  return captures_in_place() ? 0 : places_.slot_bytes();
}

int64_t ShardUnit::kept_gradient_bytes() const {
  if (narrows()) return wide_places_.whole_bytes();
  return lanes_.one_rank() ? 0 : places_.whole_bytes();
}

void ShardUnit::make_places() {
  const bool may_lend = lanes_.shards_parameters() && !narrows() && lanes_.gradient_scale == 1.0F;
  places_ = GradientPlaces(layout_, lanes_.reduce_dtype, may_lend);
  wide_places_ = GradientPlaces(layout_, DType::kFloat32, /*may_lend=*/false);
}

// Of an element that is not lent; null in a segment of empty parameters.
std::byte* ShardUnit::gradient_place(int segment, int64_t element) const {
  if (!straight_) {
    return reduce_slot_ == nullptr ? nullptr
                                   : reduce_slot_->at(places().slot_offset_bytes(segment, element));
  }
  Slot* main = main_gradients_[segment];
  return main == nullptr ? nullptr : main->at(element * size_of(DType::kFloat32));
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
  straight_ =
      captures_in_place() && (lanes_.one_rank() || (will_reduce && main_gradients_.empty()));
  if (straight_) {
    // Straight into the main gradient. On one rank later micro-batches add to it where it lies.
    if (!main_gradients_.empty()) {
      adds_to_earlier_ = true;
      std::fill(arrived_.begin(), arrived_.end(), 1);
      return;
    }
    take_main_gradients(*lanes_.compute);
    return zero_gaps();
  }
  // [Note: kept gradients are wide] What is added up over passes is added up in fp32, as a main
  // gradient is: in bf16 the 257th of equal gradients would add nothing any more.
  wide_ = narrows() && !will_reduce;
  take_reduce_slot();
  if (places_.any_lends()) lanes_.compute->wait(lanes_.lent_reduced[lanes_.lent_turn]);  // wait 8
  zero_gaps();
}

void ShardUnit::take_reduce_slot() {
  reduce_slot_ = lanes_.reduce_slots.acquire(places().slot_bytes());
  if (reduce_slot_ != nullptr) lanes_.compute->wait(reduce_slot_->released);  // wait 6
}

// From the slot of gradients that were kept wide to one of those that travel.
void ShardUnit::narrow_gradients() {
  if (!wide_) return;
  Slot* kept = reduce_slot_;
  wide_ = false;
  take_reduce_slot();
  std::vector<kernels::CastRun> runs;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int segment = static_cast<int>(i);
    if (!segments_[i]->layout.trainable || kept == nullptr) continue;
    runs.push_back({kept->at(wide_places_.slot_offset_bytes(segment, 0)),
                    gradient_place(segment, 0), segments_[i]->layout.numel, DType::kFloat32,
                    lanes_.reduce_dtype});
  }
  kernels::cast_pack(*lanes_.compute, runs);
  if (kept == nullptr) return;
  lanes_.compute->record(kept->released);
  lanes_.reduce_slots.release(kept);
}

// Gaps and padding travel with every reduction and end in the main gradient: they are always zero.
void ShardUnit::zero_gaps() {
  std::vector<kernels::FillRun> runs;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const SegmentLayout& layout = segments_[i]->layout;
    if (!layout.trainable) continue;
    for (const Gap& gap : layout.gaps) {
      runs.push_back({gradient_place(static_cast<int>(i), gap.offset), gap.numel, whole_dtype()});
    }
  }
  kernels::fill_zero(*lanes_.compute, runs);
}

void ShardUnit::capture(int parameter, const at::Tensor& gradient) {
  // Counts as missing: zero-filled when the unit closes.
  if (!gradient.defined() || gradient._is_zerotensor()) return;
  if (gradient.is_neg()) return capture(parameter, gradient.resolve_neg());
  const ParameterSpec& spec = layout_.parameters()[parameter];
  const auto dtype = torch_compat::dtype_of(gradient.scalar_type());
  if (gradient.layout() != at::kStrided || !dtype || !is_floating(*dtype)) {
    throw InvalidArgument({.what = fmt::format("the gradient of '{}' is sparse or of type {}",
                                               spec.fqn, c10::toString(gradient.scalar_type())),
                           .where = name_of_unit(fqn_),
                           .cause = {},
                           .hint = "build the embedding with sparse(false)"});
  }
  if (places_.lends(parameter) && lend(parameter, gradient, *dtype)) return;
  const int segment = layout_.segment_of(parameter);
  add_gradient(gradient, *dtype, parameter,
               places_.lends(parameter)
                   ? static_cast<std::byte*>(lent_[segment]->gradient.mutable_data_ptr())
                   : gradient_place(segment, layout_.place_of(parameter).offset));
}

// True if the gradient itself is kept. One that somebody else may read or write, or that lies in
// another order, is copied to memory of LibTorch's; later ones are added to what is lent.
bool ShardUnit::lend(int parameter, const at::Tensor& gradient, DType dtype) {
  std::shared_ptr<LentGradient>& lent = lent_[layout_.segment_of(parameter)];
  if (lent) return false;
  lent = std::make_shared<LentGradient>();
  const ParameterSpec& spec = layout_.parameters()[parameter];
  if (!is_sole(gradient) || dtype != lanes_.reduce_dtype || !lies_like(gradient, spec)) {
    lent->gradient = at::empty({spec.numel}, torch_compat::scalar_type_of(lanes_.reduce_dtype));
    return false;
  }
  lent->gradient = gradient;
  arrived_[parameter] = 1;
  return true;
}

void ShardUnit::add_gradient(const at::Tensor& gradient, DType dtype, int parameter,
                             std::byte* place) {
  const ParameterSpec& spec = layout_.parameters()[parameter];
  const DType to = whole_dtype();
  const bool adds = arrived_[parameter] != 0;
  arrived_[parameter] = 1;
  Stream& stream = *lanes_.compute;
  const StreamSpan span = lanes_.span(*lanes_.compute, "capture", spec.fqn);
  if (lies_like(gradient, spec)) {
    kernels::accumulate(stream,
                        std::vector<kernels::AccumulateRun>{{.source = gradient.const_data_ptr(),
                                                             .destination = place,
                                                             .numel = spec.numel,
                                                             .source_dtype = dtype,
                                                             .destination_dtype = to,
                                                             .overwrite = !adds}},
                        lanes_.gradient_scale);
    return;
  }
  at::Tensor ordered = gradient.permute(memory_order(spec));
  if (ordered.dim() > kernels::kMaxDims) ordered = ordered.contiguous().flatten();
  kernels::StridedSource source{.data = ordered.const_data_ptr(), .dtype = dtype};
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
  for (size_t i = 0; i < parameters().size(); ++i) {
    const int parameter = static_cast<int>(i);
    const int segment = layout_.segment_of(parameter);
    if (!segments_[segment]->layout.trainable || arrived_[i]) continue;
    const PlacedParameter& place = layout_.place_of(parameter);
    if (places_.lends(parameter)) {
      lent_[segment] = std::make_shared<LentGradient>();
      lent_[segment]->gradient =
          at::zeros({place.numel}, torch_compat::scalar_type_of(lanes_.reduce_dtype));
      continue;
    }
    runs.push_back({gradient_place(segment, place.offset), place.numel, whole_dtype()});
  }
  kernels::fill_zero(*lanes_.compute, runs);
}

void ShardUnit::reduce() {
  if (gradient_state_ == GradientState::kNone) return;
  zero_missing();
  narrow_gradients();
  lanes_.compute->record(captured_);
  const ExposedTimer timer(lanes_);
  lanes_.reduce_stream->wait(captured_);  // wait 5
  const StreamSpan span = lanes_.span(*lanes_.reduce_stream, "reduce", fqn_);
  if (!straight_) adopt_user_gradients();
  const bool first = straight_ || main_gradients_.empty();
  if (main_gradients_.empty()) take_main_gradients(*lanes_.reduce_stream);
  const DType dtype = lanes_.reduce_dtype;
  // The first fp32 reduction of a step lands in the main gradient; else in place, then it is added.
  const bool lands = lanes_.shards_parameters() && first && dtype == DType::kFloat32;

  std::vector<CollectivePart> parts;
  std::vector<kernels::AccumulateRun> adds;
  int64_t numel = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    Slot* main = main_gradients_[i];
    if (main == nullptr) continue;  // frozen, or a segment of empty parameters
    const CollectivePart& part =
        parts.emplace_back(reduction_of(static_cast<int>(i), lands ? main->at(0) : nullptr));
    if (!lands && !straight_) {
      adds.push_back({part.recv, main->at(0), part.numel, dtype, DType::kFloat32, first});
    }
    numel += part.numel;
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
  if (reduce_slot_ != nullptr) poison(reduce_slot_, /*gradients=*/true, *lanes_.reduce_stream);
  give_gradients_back(*lanes_.reduce_stream);
  if (places_.any_lends()) {
    lanes_.reduce_stream->record(lanes_.lent_reduced[lanes_.lent_turn]);
    lanes_.lent_turn = 1 - lanes_.lent_turn;
  }
  if (!local_views_.empty()) attach_gradient_views();
}

// The whole gradients of a segment to `landing`, or to where they can be added from if it is null.
CollectivePart ShardUnit::reduction_of(int segment, std::byte* landing) {
  const SegmentLayout& layout = segments_[segment]->layout;
  std::byte* whole = gradient_place(segment, 0);
  LentGradient* lent = lent_[segment].get();
  CollectivePart part{.numel = layout.slice_numel, .dtype = lanes_.reduce_dtype};
  if (lent != nullptr) {
    lent->runs = places_.runs(segment, whole, lent->gradient.const_data_ptr());
    part.runs = lent->runs;
    if (landing == nullptr) lent->reduced = at::empty({part.numel}, lent->gradient.options());
    part.recv = landing != nullptr ? landing : lent->reduced.mutable_data_ptr();
    return part;
  }
  part.send = whole;
  part.recv = landing != nullptr
                  ? landing
                  : whole + lanes_.shard_rank() * part.numel * size_of(lanes_.reduce_dtype);
  return part;
}

// When `stream` has passed what uses them.
void ShardUnit::give_gradients_back(CpuStream& stream) {
  if (reduce_slot_ != nullptr) {
    stream.record(reduce_slot_->released);
    lanes_.reduce_slots.release(reduce_slot_);
    reduce_slot_ = nullptr;
  }
  for (std::shared_ptr<LentGradient>& lent : lent_) {
    if (lent) stream.run([held = std::exchange(lent, nullptr)] {});
  }
  if (kept_lent_bytes_ > 0) {
    lanes_.ledger.give(MemoryCategory::kReduceSlots, std::exchange(kept_lent_bytes_, 0));
  }
  gradient_state_ = GradientState::kNone;
}

void ShardUnit::keep_gradients() {
  if (gradient_state_ != GradientState::kCapturing) return;
  if (straight_) return reduce();  // one rank: the main gradient has it already
  gradient_state_ = GradientState::kKept;
  int64_t bytes = 0;
  for (size_t i = 0; i < lent_.size(); ++i) {
    if (lent_[i]) bytes += places_.lent_bytes(static_cast<int>(i));
  }
  lanes_.ledger.take(MemoryCategory::kReduceSlots, bytes - std::exchange(kept_lent_bytes_, bytes));
}

void ShardUnit::drop_gradients() { give_gradients_back(*lanes_.compute); }

void ShardUnit::abandon_gradients() {
  if (gradient_state_ == GradientState::kCapturing) {
    spoiled_ = spoiled_ || adds_to_earlier_;
    drop_gradients();
    if (straight_ && !adds_to_earlier_) zero_grad();
  }
  spoiled_ = spoiled_ || !main_gradients_.empty() || gradient_state_ == GradientState::kKept;
}

void ShardUnit::check_not_spoiled() const {
  if (!spoiled_) return;
  throw StateError({.what = "gradients of a backward that failed are mixed with others",
                    .where = name_of_unit(fqn_),
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
  // A backward that failed may have left a reduction that still writes them.
  Event used;
  lanes_.compute->record(used);
  lanes_.reduce_stream->wait(used);
  for (Slot* slot : main_gradients_) {
    if (slot == nullptr) continue;
    lanes_.reduce_stream->record(slot->released);
    lanes_.main_gradients.release(slot);
  }
  main_gradients_.clear();
  spoiled_ = false;
  for (at::Tensor& view : local_views_) view.mutable_grad() = at::Tensor();
  if (gradient_state_ == GradientState::kKept) drop_gradients();
}

void ShardUnit::unfreeze(int parameter) {
  const int segment = layout_.segment_of(parameter);
  if (segments_[segment]->layout.trainable) return;
  if (gradient_state_ != GradientState::kNone || has_main_gradient()) {
    throw StateError({.what = fmt::format("parameter '{}' was unfrozen while gradients wait for a "
                                          "step",
                                          layout_.parameters()[parameter].fqn),
                      .where = name_of_unit(fqn_),
                      .cause = {},
                      .hint = "unfreeze after zero_grad"});
  }
  layout_.make_trainable(segment);
  make_places();
  for (const PlacedParameter& placed : layout_.segments()[segment].parameters) {
    if (!local_views_.empty()) local_views_[placed.parameter].set_requires_grad(true);
  }
}

}  // namespace fsdp
