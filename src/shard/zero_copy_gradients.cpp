#include "shard/zero_copy_gradients.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "libtorch/torch_compat.h"
#include "shard/gradient_order.h"

namespace fsdp {

// A view is accepted if only it holds its base, because LibTorch computes the gradient of a
// Linear's weight as such a view.
bool ZeroCopyGradients::is_sole(const at::Tensor& gradient) {
  if (gradient.use_count() != 1) return false;
  if (!gradient.is_view()) return gradient.storage().use_count() == 1;
  return gradient._base().use_count() == 1 && gradient.storage().use_count() == 2 &&
         gradient.storage().nbytes() == gradient.nbytes();
}

ZeroCopyGradients::ZeroCopyGradients(const UnitContext& unit, const GradientPlaces& places)
    : unit_(unit), places_(places), zero_copy_(unit.segments()) {}

void ZeroCopyGradients::open() {
  ShardContext& shared = unit_.shared;
  if (!places_.any_lends()) return;
  shared.streams.compute->wait(shared.zero_copy.reduced[shared.zero_copy.turn]);  // wait 8
  // From here on LibTorch may reuse the memory of the held gradients, because the compute stream
  // has just waited for the reduction that reads them.
  shared.zero_copy.held[shared.zero_copy.turn].clear();
}

at::TensorOptions ZeroCopyGradients::options() const {
  return at::TensorOptions()
      .dtype(scalar_type_of(unit_.reduce_dtype))
      .device(unit_.shared.streams.torch_device);
}

ZeroCopyGradients::ZeroCopy& ZeroCopyGradients::make(int parameter) {
  return *(zero_copy_[unit_.layout.segment_of(parameter)] = std::make_shared<ZeroCopy>());
}

// A tensor with another holder is copied, because the holder could change it before the reduction
// has read it. A tensor that must be scaled, cast or reordered is copied as well.
bool ZeroCopyGradients::lend(int parameter, const at::Tensor& gradient, DType dtype) {
  const ParameterSpec& spec = unit_.layout.parameters()[parameter];
  ZeroCopy& zero_copy = make(parameter);
  const DType reduced_in = unit_.reduce_dtype;
  const bool is_scaled = unit_.shared.format.capture_scale() != 1.0F;
  if (!is_scaled && is_sole(gradient) && dtype == reduced_in && lies_like(gradient, spec)) {
    zero_copy.gradient = gradient;
    return true;
  }
  zero_copy.gradient = at::empty({spec.numel}, options());
  return false;
}

void ZeroCopyGradients::make_missing(int parameter) {
  make(parameter).gradient = at::empty({unit_.layout.parameters()[parameter].numel}, options());
}

std::byte* ZeroCopyGradients::place(int parameter) const {
  return static_cast<std::byte*>(of(parameter)->gradient.mutable_data_ptr());
}

void ZeroCopyGradients::make_room(int segment, int64_t numel) {
  ZeroCopy& zero_copy = *zero_copy_[segment];
  zero_copy.reduced = at::empty({numel}, zero_copy.gradient.options());
}

CollectivePart ZeroCopyGradients::part(int segment, const std::byte* slot_at, int64_t numel,
                                       std::byte* landing) {
  ZeroCopy& zero_copy = *zero_copy_[segment];
  // The stream that reduces the gradient also reads the array of runs. So the array is a member of
  // `zero_copy`, which give_back keeps alive until the stream has read it.
  zero_copy.runs = places_.runs(segment, slot_at, zero_copy.gradient.const_data_ptr());
  CollectivePart part{.numel = numel, .dtype = unit_.reduce_dtype};
  part.runs = zero_copy.runs;
  part.recv = landing != nullptr ? landing : zero_copy.reduced.mutable_data_ptr();
  return part;
}

void ZeroCopyGradients::keep() {
  int64_t bytes = 0;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (has_segment(i)) bytes += places_.zero_copy_bytes(i);
  }
  unit_.shared.memory.ledger.take(MemoryCategory::kReduceSlots,
                                  bytes - std::exchange(kept_bytes_, bytes));
}

void ZeroCopyGradients::give_back(Stream& stream, bool reduced) {
  ShardContext& shared = unit_.shared;
  for (std::shared_ptr<ZeroCopy>& zero_copy : zero_copy_) {
    if (!zero_copy) continue;
    // An inline compute stream frees and reuses memory at once, so the reducing stream holds the
    // gradient. On a device, ZeroCopyWindow::held holds the gradient until compute waits for the
    // reduction. Without a reduction only compute has used the gradient, so nothing needs to hold
    // it: LibTorch reuses its memory only for later work on compute.
    if (shared.streams.compute->is_inline()) {
      stream.hold(std::exchange(zero_copy, nullptr));
    } else if (reduced) {
      shared.zero_copy.held[shared.zero_copy.turn].push_back(std::exchange(zero_copy, nullptr));
    }
    zero_copy = nullptr;
  }
  if (kept_bytes_ > 0) {
    shared.memory.ledger.give(MemoryCategory::kReduceSlots, std::exchange(kept_bytes_, 0));
  }
  if (!reduced || !places_.any_lends()) return;
  stream.record(shared.zero_copy.reduced[shared.zero_copy.turn]);
  shared.zero_copy.turn = 1 - shared.zero_copy.turn;
}

}  // namespace fsdp
