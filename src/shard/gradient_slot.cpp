#include "shard/gradient_slot.h"

#include <vector>

#include "kernels/fill.h"

namespace fsdp {

// Gradients are about to arrive, so the slot is acquired on demand: if the plan has no free slot,
// the pool allocates another one.
void GradientSlot::open() {
  slot_ = unit_.shared.memory.reduce_slots.acquire(places_.slot_bytes());
  if (slot_ != nullptr) unit_.shared.streams.compute->wait(slot_->released);  // wait 6
}

std::byte* GradientSlot::place(int segment, int64_t element) const {
  return slot_ == nullptr ? nullptr : slot_->at(places_.slot_offset_bytes(segment, element));
}

void GradientSlot::close(Stream& stream) {
  if (slot_ == nullptr) return;
  // In debug mode the slot is filled with NaN after its last use and before its release, so only a
  // wrong read, after the release, can see the NaN.
  if (unit_.shared.debug) fill_nan(stream);
  stream.record(slot_->released);
  unit_.shared.memory.reduce_slots.release(slot_);
  slot_ = nullptr;
}

void GradientSlot::fill_nan(Stream& stream) const {
  std::vector<kernels::FillRun> runs;
  for (int i = 0; i < unit_.segments(); ++i) {
    if (!unit_.segment(i).trainable) continue;
    runs.push_back({place(i, 0), places_.slot_numel(i), dtype_});
  }
  kernels::fill_nan(stream, runs);
}

}  // namespace fsdp
