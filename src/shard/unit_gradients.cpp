#include "shard/unit_gradients.h"

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "kernels/fill.h"
#include "libtorch/torch_compat.h"
#include "shard/parameter_bindings.h"

namespace fsdp {

UnitGradients::UnitGradients(const UnitContext& unit, MainShards& main,
                             const std::vector<at::Tensor>& parameters)
    : unit_(unit),
      main_(unit, main, parameters),
      slot_(unit, places_, unit.reduce_dtype),
      wide_slot_(unit, wide_places_, DType::kFloat32),
      zero_copy_(unit, places_),
      groups_(unit, main_, slot_),
      table_(unit),
      arrived_(parameters.size(), 0),
      captured_(unit.shared.streams.device) {
  make_places();
}

void UnitGradients::make_places() {
  const ShardContext& shared = unit_.shared;
  // A zero-copy gradient is sent from LibTorch's tensor without change. So zero-copy is impossible
  // if gradients must be scaled or cast before they are sent, or if the sum overwrites what is
  // sent. It is also impossible with offload and groups: GroupSums::sum_to_main copies sums of
  // groups back into the slot, so the slot must have a place for every gradient.
  const bool come_back = shared.main->is_host() && groups_.has_moves();
  const bool may_lend = unit_.collectives.scatters_gradients() && !unit_.narrows() && !come_back &&
                        shared.format.divide_scale == 1.0F &&
                        shared.comms.reduce().capabilities().takes_runs;
  places_ = GradientPlaces(unit_.layout, unit_.reduce_dtype, may_lend);
  wide_places_ = GradientPlaces(unit_.layout, DType::kFloat32, /*may_lend=*/false);
}

bool UnitGradients::captures_in_place() const {
  return !unit_.collectives.scatters_gradients() && travel_as_main(unit_);
}

int64_t UnitGradients::kept_bytes() const {
  if (unit_.narrows()) return wide_places_.whole_bytes();
  return captures_in_place() && adds_in_place() ? 0 : places_.whole_bytes();
}

std::byte* UnitGradients::place(int segment, int64_t element) {
  if (sink_ != Sink::kMain) return slot().place(segment, element);
  return main_.has(segment) ? main_.at(segment, element) : nullptr;
}

// [Note: kept gradients are wide] Gradients of several passes are added up in fp32, as in a main
// gradient. In bf16, a sum of equal gradients would no longer change from the 257th gradient on.
//
// A unit that captures in place must not add this rank's gradients to a sum over all ranks. So it
// uses a slot if the main gradient holds such a sum, or if this pass does not reduce.
UnitGradients::Sink UnitGradients::sink_for(GradientSync sync) const {
  const bool will_reduce = sync != GradientSync::kNone;
  if (captures_in_place() && (adds_in_place() || (will_reduce && !main_.are_ready()))) {
    return Sink::kMain;
  }
  return unit_.narrows() && !will_reduce ? Sink::kWideSlot : Sink::kSlot;
}

void UnitGradients::open(GradientSync sync) {
  if (!unit_.layout.has_trainable()) return;
  if (state_ == GradientState::kCapturing) return;
  settle();
  if (sync == GradientSync::kInside && groups_.has_moves() && main_.are_ready() &&
      !await_across()) {
    throw StateError({.what = "a backward reduces gradients only within groups, but an earlier "
                              "backward reduced them over all ranks",
                      .where = name_of_unit(unit_.fqn),
                      .cause = "its gradients would be added to sums of all groups",
                      .hint = "reduce over all ranks only in the last backward before a step"});
  }
  // If an earlier pass has kept its gradients, they still have their memory, and arrived_ marks the
  // parameters that have a kept gradient. So nothing else is to be set up.
  adds_to_earlier_ = state_ == GradientState::kKept;
  state_ = GradientState::kCapturing;
  if (adds_to_earlier_) return;
  sink_ = sink_for(sync);
  // On one rank the gradients of later micro-batches are added to the main gradient in place.
  adds_to_earlier_ = sink_ == Sink::kMain && main_.are_ready();
  std::fill(arrived_.begin(), arrived_.end(), adds_to_earlier_ ? 1 : 0);
  if (adds_to_earlier_) return;
  last_user_ = unit_.shared.streams.compute;
  if (sink_ == Sink::kMain) {
    main_.take(*last_user_);
  } else {
    slot().open();
  }
  zero_copy_.open();
  if (sink_ != Sink::kSlot) zero_gaps(*unit_.shared.streams.compute);
}

// Every reduction also sends the gaps and the padding of a segment and writes them to the main
// gradient, so gaps and padding must be zero. Gaps in a slot are filled on the reduce stream,
// concurrently with compute.
void UnitGradients::zero_gaps(Stream& stream) {
  std::vector<kernels::FillRun> runs;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (!unit_.segment(i).trainable) continue;
    for (const Gap& gap : unit_.segment(i).gaps) {
      runs.push_back({place(i, gap.offset), gap.numel, dtype()});
    }
  }
  kernels::fill_zero(stream, runs);
}

void UnitGradients::capture(int parameter, const at::Tensor& gradient) {
  // A gradient that is undefined, a zero tensor or empty counts as missing: its place is filled
  // with zeros when the unit closes.
  if (!gradient.defined() || gradient._is_zerotensor() || gradient.numel() == 0) return;
  unit_.shared.streams.wait_for_autograd();
  if (gradient.is_neg()) return capture(parameter, gradient.resolve_neg());
  const auto dtype = dtype_of(gradient.scalar_type());
  if (gradient.layout() != at::kStrided || !dtype || !is_floating(*dtype)) {
    throw InvalidArgument(
        {.what = fmt::format("the gradient of parameter '{}' is sparse or of type {}",
                             unit_.layout.parameters()[parameter].fqn,
                             c10::toString(gradient.scalar_type())),
         .where = name_of_unit(unit_.fqn),
         .hint = "build the embedding with sparse(false)"});
  }
  if (zero_copy_.lends(parameter) && !zero_copy_.has(parameter) &&
      zero_copy_.lend(parameter, gradient, *dtype)) {
    arrived_[parameter] = 1;
    return;
  }
  // A parameter gets several gradients if several calls or several passes use it.
  const bool overwrites = arrived_[parameter] == 0;
  arrived_[parameter] = 1;
  table_.add(parameter, gradient, {place_of(parameter), this->dtype(), overwrites});
}

std::byte* UnitGradients::place_of(int parameter) {
  if (zero_copy_.lends(parameter)) return zero_copy_.place(parameter);
  return place(unit_.layout.segment_of(parameter), unit_.layout.place_of(parameter).offset);
}

// All ranks reduce the whole unit, regardless of the gradients that have arrived on each rank.
void UnitGradients::zero_missing() {
  std::vector<kernels::FillRun> runs;
  for (size_t i = 0; i < arrived_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (arrived_[i] || !unit_.segment(unit_.layout.segment_of(parameter)).trainable) continue;
    if (zero_copy_.lends(parameter)) zero_copy_.make_missing(parameter);
    runs.push_back({place_of(parameter), unit_.layout.parameters()[i].numel, dtype()});
  }
  kernels::fill_zero(*unit_.shared.streams.compute, runs);
}

// Casts kept gradients from the wide slot to a slot in reduce_dtype. The cast runs on the compute
// stream, which also captured the gradients, so the release of the wide slot is recorded on
// compute.
void UnitGradients::narrow() {
  if (sink_ != Sink::kWideSlot) return;
  slot_.open();
  std::vector<kernels::CastRun> runs;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (!unit_.segment(i).trainable) continue;
    runs.push_back({wide_slot_.place(i, 0), slot_.place(i, 0), unit_.segment(i).numel,
                    wide_slot_.dtype(), slot_.dtype()});
  }
  kernels::cast_pack(*unit_.shared.streams.compute, runs);
  wide_slot_.close(*unit_.shared.streams.compute);
  sink_ = Sink::kSlot;
}

void UnitGradients::reduce(bool across) {
  // If the user has cleared all `.grad`, kept gradients are cleared as well.
  if (sink_ != Sink::kMain) adopt_user_gradients();
  if (state_ == GradientState::kNone) return;
  table_.issue();
  zero_missing();
  narrow();
  ShardContext& shared = unit_.shared;
  Stream& stream = *shared.streams.reduce;
  const bool in_main = sink_ == Sink::kMain;
  const bool first = in_main || !main_.are_ready();
  Stream& last = shared.main->last_of_reduce();
  if (!main_.are_ready()) main_.take(last);
  // If main gradients are on the device and gradients are sent in fp32, the first reduce_scatter of
  // a step writes the main gradient directly. Any other reduction works in place in the slot, and
  // its result is added.
  const bool lands = unit_.collectives.scatters_gradients() && first && travel_as_main(unit_);

  const std::vector<AxisCollective>& collectives = unit_.collectives.after_backward;
  std::vector<Summed> sums;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (!main_.has(i)) continue;  // frozen, or a segment of empty parameters
    const int64_t numel = unit_.segment(i).numel;
    sums.push_back({i, zero_copy_.has_segment(i) ? nullptr : place(i, 0), numel, dtype()});
    const bool lands_at_once = lands && collectives.size() == 1;
    if (!zero_copy_.has_segment(i) || lands_at_once) continue;
    // The first sum of a zero-copy gradient must not overwrite LibTorch's tensor in place, so the
    // sum gets memory of its own.
    zero_copy_.make_room(i, numel / shared.mesh.size(collectives.front().axis));
  }
  // LibTorch has allocated zero-copy gradients, and the memory for their sums, on its current
  // stream, so the compute stream waits for this stream.
  shared.streams.wait_for_autograd();
  shared.streams.compute->record(captured_);
  const ExposedTimer timer(shared.streams);
  stream.wait(captured_);  // wait 5
  // From here on the reduce stream uses the slot. If a collective throws, abandon releases the slot
  // after the work of that stream.
  last_user_ = &stream;
  const ContextSpan span = shared.streams.span(stream, "reduce", unit_.fqn);
  if (!in_main) zero_gaps(stream);
  for (const AxisCollective& move : collectives)
    issue(move, sums, lands && &move == &collectives.back());
  ++shared.comms.reduces;
  const bool goes_across = across && groups_.has_moves();
  if (lands) {
    if (goes_across) groups_.sum(sums);
  } else if (!in_main && goes_across) {
    groups_.sum_to_main(std::move(sums), /*adds=*/true, first);
  } else if (!in_main) {
    add_to_main(unit_, main_, sums, first);
  }
  groups_.set_awaited(!across && groups_.has_moves());
  last_user_ = &last;  // with offload the download stream reads the sums
  give_back(/*reduced=*/true);
  main_.note_added();
  main_.attach_views();
}

void UnitGradients::sum_across() {
  if (!await_across()) return;
  adopt_user_gradients();
  if (!await_across()) return;  // the user had cleared all gradients of this unit
  groups_.sum_main();
  main_.attach_views();
}

void UnitGradients::issue(const AxisCollective& move, std::vector<Summed>& sums, bool lands) {
  const ShardContext& shared = unit_.shared;
  const bool scatters = move.operation == Operation::kReduceScatter;
  std::vector<CollectivePart> parts;
  parts.reserve(sums.size());
  for (Summed& sum : sums) {
    if (scatters) sum.numel /= shared.mesh.size(move.axis);
    std::byte* landing = lands ? main_.at(sum.segment, 0) : nullptr;
    if (sum.at == nullptr) {
      parts.push_back(zero_copy_.part(sum.segment, place(sum.segment, 0), sum.numel, landing));
    } else {
      const int64_t own = scatters ? shared.mesh.rank(move.axis) * sum.numel : 0;
      std::byte* in_place = sum.at + own * size_of(sum.dtype);
      parts.push_back({sum.at, lands ? landing : in_place, sum.numel, sum.dtype});
    }
    sum.at = static_cast<std::byte*>(parts.back().recv);
  }
  issue_reduction(unit_, move, parts);
}

void UnitGradients::give_back(bool reduced) {
  if (sink_ != Sink::kMain) slot().close(*last_user_);
  zero_copy_.give_back(*last_user_, reduced);
  state_ = GradientState::kNone;
}

void UnitGradients::keep() {
  if (state_ != GradientState::kCapturing) return;
  if (sink_ == Sink::kMain) return reduce(/*across=*/true);  // one rank: nothing is communicated
  table_.issue();
  state_ = GradientState::kKept;
  main_.forget_cleared();
  zero_copy_.keep();
  show();
}

void UnitGradients::drop() {
  if (state_ == GradientState::kNone) return;
  table_.drop();
  give_back(/*reduced=*/false);
}

// If the failed pass has added to gradients of earlier passes, its part cannot be removed from
// them. Gradients that were reduced before the error also contain a part of the failed pass, which
// other units may lack. So the gradients count as mixed, and a step must not use them.
void UnitGradients::abandon() {
  if (state_ == GradientState::kCapturing) {
    mixed_ = mixed_ || adds_to_earlier_;
    drop();
    if (sink_ == Sink::kMain && !adds_to_earlier_) zero();
  }
  mixed_ = mixed_ || main_.are_ready() || state_ == GradientState::kKept;
}

void UnitGradients::zero() {
  main_.give_back();
  mixed_ = is_used_ = false;
  if (state_ == GradientState::kKept) drop();
}

void UnitGradients::zero(std::span<const int> parameters) {
  main_.clear(parameters);
  // The next gradient of a kept parameter overwrites the old gradient. If no gradient arrives, the
  // old gradient is zero-filled.
  if (state_ == GradientState::kKept) {
    for (const int each : parameters) arrived_[each] = 0;
  }
  if (!is_any_left()) zero();
}

// Does not read arrived_, because arrived_ differs between ranks and all ranks must make the same
// decision.
bool UnitGradients::is_any_left() const {
  for (size_t i = 0; i < arrived_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const bool has_gradient = unit_.segment(unit_.layout.segment_of(parameter)).trainable &&
                              unit_.layout.parameters()[i].numel > 0;
    if (has_gradient && !main_.is_cleared(parameter)) return true;
  }
  return false;
}

void UnitGradients::adopt_user_gradients() {
  if (!main_.adopt_user_gradients(/*kept=*/state_ == GradientState::kKept)) zero();
}

void UnitGradients::settle() {
  adopt_user_gradients();
  require_unmixed();
}

void UnitGradients::require_unmixed() const {
  if (!mixed_) return;
  throw StateError(
      {.what = "gradients of a failed backward are mixed with gradients of another backward",
       .where = name_of_unit(unit_.fqn),
       .hint = "call zero_grad after catching an exception from backward"});
}

}  // namespace fsdp
