// Where a unit's whole gradients arrive, until they are reduced or kept: a slot, or the main
// gradient itself. (A large one may stay where LibTorch has made it: lent_gradients.h.)
#pragma once

#include <cstddef>

#include "plan/gradient_places.h"
#include "shard/main_gradients.h"

namespace fsdp {

class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Takes memory, which compute may write when it has passed this.
  virtual void open() = 0;
  // Of an element of a trainable segment that is not lent; null in a segment of empty parameters.
  virtual std::byte* place(int segment, int64_t element) const = 0;
  virtual DType dtype() const = 0;
  // Gives the memory back once `stream` has passed what uses it.
  virtual void close(Stream& stream) = 0;
};

// Copied together in `dtype`, at `places` of a slot of the reduce pool.
class SlotSink : public GradientSink {
 public:
  // Both live as long; `places` may be replaced while the sink is closed.
  SlotSink(const UnitContext& unit, const GradientPlaces& places, DType dtype)
      : unit_(unit), places_(places), dtype_(dtype) {}

  void open() override;
  std::byte* place(int segment, int64_t element) const override;
  DType dtype() const override { return dtype_; }
  void close(Stream& stream) override;

 private:
  void fill_nan(Stream& stream) const;

  const UnitContext& unit_;
  const GradientPlaces& places_;
  const DType dtype_;
  Slot* slot_ = nullptr;  // from open to close; null if all is lent
};

// Added where the optimizer reads it: no copy, no slot.
class MainSink : public GradientSink {
 public:
  MainSink(const UnitContext& unit, MainGradients& main) : unit_(unit), main_(main) {}

  void open() override { main_.take(*unit_.shared.streams.compute); }
  std::byte* place(int segment, int64_t element) const override {
    return main_.has(segment) ? main_.at(segment, element) : nullptr;
  }
  DType dtype() const override { return DType::kFloat32; }
  void close(Stream& /*stream*/) override {}

 private:
  const UnitContext& unit_;
  MainGradients& main_;
};

}  // namespace fsdp
