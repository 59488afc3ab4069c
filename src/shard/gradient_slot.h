// A slot of the reduce pool, in which a unit's gradients of one dtype arrive until they are reduced
// or kept. (A large one may stay where LibTorch has made it: zero_copy_gradients.h.)
#pragma once

#include <cstddef>

#include "plan/gradient_places.h"
#include "shard/unit_context.h"

namespace fsdp {

class GradientSlot {
 public:
  // Both live as long; `places` may be replaced while the slot is closed.
  GradientSlot(const UnitContext& unit, const GradientPlaces& places, DType dtype)
      : unit_(unit), places_(places), dtype_(dtype) {}

  // Takes memory, which compute may write when it has passed this.
  void open();
  // Returns where an element of a trainable segment arrives that is not lent.
  std::byte* place(int segment, int64_t element) const;
  DType dtype() const { return dtype_; }
  // Gives the memory back once `stream` has passed what uses it.
  void close(Stream& stream);

 private:
  void fill_nan(Stream& stream) const;

  const UnitContext& unit_;
  const GradientPlaces& places_;
  const DType dtype_;
  Slot* slot_ = nullptr;  // from open to close; null if all is lent
};

}  // namespace fsdp
