#include "shard/lent_gradients.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "libtorch/torch_compat.h"
#include "shard/gradient_order.h"

namespace fsdp {
namespace {

// True if nobody else holds the gradient or its memory. That of a Linear's weight is a view of a
// product that only this view holds.
bool is_sole(const at::Tensor& gradient) {
  if (gradient.use_count() != 1) return false;
  if (!gradient.is_view()) return gradient.storage().use_count() == 1;
  return gradient._base().use_count() == 1 && gradient.storage().use_count() == 2 &&
         gradient.storage().nbytes() == gradient.nbytes();
}

}  // namespace

LentGradients::LentGradients(const UnitContext& unit, const GradientPlaces& places)
    : unit_(unit), places_(places), lent_(unit.segments()) {}

void LentGradients::open() {
  ShardContext& shared = unit_.shared;
  if (!places_.any_lends()) return;
  shared.streams.compute->wait(shared.lent.reduced[shared.lent.turn]);  // wait 8
  // What compute makes of the memory comes behind that wait.
  shared.lent.held[shared.lent.turn].clear();
}

at::TensorOptions LentGradients::options() const {
  return at::TensorOptions()
      .dtype(scalar_type_of(unit_.reduce_dtype))
      .device(unit_.shared.streams.torch_device);
}

LentGradients::Lent& LentGradients::make(int parameter) {
  return *(lent_[unit_.layout.segment_of(parameter)] = std::make_shared<Lent>());
}

bool LentGradients::lend(int parameter, const at::Tensor& gradient, DType dtype) {
  const ParameterSpec& spec = unit_.layout.parameters()[parameter];
  Lent& lent = make(parameter);
  const DType reduced_in = unit_.reduce_dtype;
  const bool is_scaled = unit_.shared.format.capture_scale() != 1.0F;
  if (!is_scaled && is_sole(gradient) && dtype == reduced_in && lies_like(gradient, spec)) {
    lent.gradient = gradient;
    return true;
  }
  lent.gradient = at::empty({spec.numel}, options());
  return false;
}

void LentGradients::lend_zeros(int parameter) {
  make(parameter).gradient = at::zeros({unit_.layout.parameters()[parameter].numel}, options());
}

std::byte* LentGradients::place(int parameter) const {
  return static_cast<std::byte*>(of(parameter)->gradient.mutable_data_ptr());
}

void LentGradients::make_room(int segment, int64_t numel) {
  Lent& lent = *lent_[segment];
  lent.reduced = at::empty({numel}, lent.gradient.options());
}

CollectivePart LentGradients::part(int segment, const std::byte* slot_at, int64_t numel,
                                   std::byte* landing) {
  Lent& lent = *lent_[segment];
  lent.runs = places_.runs(segment, slot_at, lent.gradient.const_data_ptr());
  CollectivePart part{.numel = numel, .dtype = unit_.reduce_dtype};
  part.runs = lent.runs;
  part.recv = landing != nullptr ? landing : lent.reduced.mutable_data_ptr();
  return part;
}

void LentGradients::keep() {
  int64_t bytes = 0;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (has_segment(i)) bytes += places_.lent_bytes(i);
  }
  unit_.shared.memory.ledger.take(MemoryCategory::kReduceSlots,
                                  bytes - std::exchange(kept_bytes_, bytes));
}

void LentGradients::give_back(Stream& stream, bool reduced) {
  ShardContext& shared = unit_.shared;
  for (std::shared_ptr<Lent>& lent : lent_) {
    if (!lent) continue;
    if (shared.streams.compute->is_inline()) {
      stream.hold(std::exchange(lent, nullptr));
    } else if (reduced) {
      shared.lent.held[shared.lent.turn].push_back(std::exchange(lent, nullptr));
    }
    lent = nullptr;  // else compute's own memory, which is compute's next
  }
  if (kept_bytes_ > 0) {
    shared.memory.ledger.give(MemoryCategory::kReduceSlots, std::exchange(kept_bytes_, 0));
  }
  if (!reduced || !places_.any_lends()) return;
  stream.record(shared.lent.reduced[shared.lent.turn]);
  shared.lent.turn = 1 - shared.lent.turn;
}

}  // namespace fsdp
