// [Note: zero-copy gradients] in gradient_places.h: the large gradients of a unit that stay where
// LibTorch has made them until they are reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/gradient_places.h"
#include "shard/unit_context.h"

namespace fsdp {

// Not thread-safe: the engine's mutex covers it.
class ZeroCopyGradients {
 public:
  // `places` says which parameters lend; it lives as long.
  ZeroCopyGradients(const UnitContext& unit, const GradientPlaces& places);

  bool lends(int parameter) const { return places_.lends(parameter); }
  // Before gradients of the unit arrive, so that no more than two of the engine's lent gradients
  // stand whole.
  void open();
  // The first gradient of a parameter that lends. True if it is kept as it is: nobody else holds
  // it, and it lies as the reduction sends it. Else memory of LibTorch's is made for a copy.
  bool lend(int parameter, const at::Tensor& gradient, DType dtype);
  bool has(int parameter) const { return of(parameter) != nullptr; }
  // Where it lies, after lend or lend_zeros.
  std::byte* place(int parameter) const;
  void lend_zeros(int parameter);

  // Whether the segment has a gradient that is lent. Then: room for `numel` elements of its sum,
  // made by compute, where it is not to land elsewhere; and what is sent of it, of which `numel`
  // elements come back to `landing`, or to that room if it is null. `slot_at` is where the slot's
  // part of the segment begins.
  bool has_segment(int segment) const { return zero_copy_[segment] != nullptr; }
  void make_room(int segment, int64_t numel);
  CollectivePart part(int segment, const std::byte* slot_at, int64_t numel, std::byte* landing);

  // They stay beyond the pass, and are counted as slots are.
  void keep();
  // `stream` has passed what uses them, later. `reduced`: it was their reduction.
  void give_back(Stream& stream, bool reduced);

 private:
  // The stream that reduces it holds it, too: the unit may have the next one before this one is
  // reduced.
  struct ZeroCopy {
    at::Tensor gradient;  // elements in the parameter's memory order; nobody else's
    at::Tensor reduced;   // this rank's slice, where it cannot land in the main gradient
    std::array<SendRun, 3> runs;
  };
  const std::shared_ptr<ZeroCopy>& of(int parameter) const {
    return zero_copy_[unit_.layout.segment_of(parameter)];
  }
  at::TensorOptions options() const;  // of what is reduced
  ZeroCopy& make(int parameter);

  const UnitContext& unit_;
  const GradientPlaces& places_;
  std::vector<std::shared_ptr<ZeroCopy>> zero_copy_;  // by segment; null: none has come
  int64_t kept_bytes_ = 0;                            // counted in the ledger
};

}  // namespace fsdp
