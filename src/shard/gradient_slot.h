// GradientSlot is a slot of the reduce pool that holds a unit's gradients, in one dtype, until they
// are reduced. Zero-copy gradients stay outside it (zero_copy_gradients.h).
#pragma once

#include <cstddef>

#include "plan/gradient_places.h"
#include "shard/unit_context.h"

namespace fsdp {

class GradientSlot {
 public:
  // Requires: `unit` and `places` live as long; `places` changes only while the slot is closed.
  GradientSlot(const UnitContext& unit, const GradientPlaces& places, DType dtype)
      : unit_(unit), places_(places), dtype_(dtype) {}

  // Acquires a slot. Compute waits until it may write it (wait 6).
  void open();
  // Returns the address of an element of a trainable segment, null if the slot is empty. Requires:
  // the element is not part of a zero-copy gradient.
  std::byte* place(int segment, int64_t element) const;
  DType dtype() const { return dtype_; }
  // Releases the slot behind the work that `stream` has so far: the last that uses it.
  void close(Stream& stream);

 private:
  void fill_nan(Stream& stream) const;

  const UnitContext& unit_;
  const GradientPlaces& places_;
  const DType dtype_;
  Slot* slot_ = nullptr;  // from open to close; null if there is nothing to hold
};

}  // namespace fsdp
