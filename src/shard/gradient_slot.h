// GradientSlot is a slot of the reduce pool that holds a unit's gradients, in one dtype, until they
// are reduced. Zero-copy gradients stay outside it (zero_copy_gradients.h).
#pragma once

#include <cstddef>

#include "plan/gradient_places.h"
#include "shard/unit_context.h"

namespace fsdp {

class GradientSlot {
 public:
  // `unit` and `places` must outlive this object. `places` may change only while the slot is
  // closed.
  GradientSlot(const UnitContext& unit, const GradientPlaces& places, DType dtype)
      : unit_(unit), places_(places), dtype_(dtype) {}

  // Acquires a slot. The compute stream waits until it may write the slot (wait 6).
  void open();
  // Returns the address in the slot of an element of a trainable segment. Returns null if the unit
  // needs no slot. The element must not be part of a zero-copy gradient.
  std::byte* place(int segment, int64_t element) const;
  DType dtype() const { return dtype_; }
  // Releases the slot. Its next user waits for all work that was issued to `stream` before.
  // Requires: `stream` is the last stream that uses the slot.
  void close(Stream& stream);

 private:
  void fill_nan(Stream& stream) const;

  const UnitContext& unit_;
  const GradientPlaces& places_;
  const DType dtype_;
  Slot* slot_ = nullptr;  // null if closed, or if the unit needs no slot
};

}  // namespace fsdp
