// ZeroCopyGradients holds a unit's large gradients, in the tensors that LibTorch allocated, until
// they are reduced: [Note: zero-copy gradients] in gradient_places.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/gradient_places.h"
#include "shard/unit_context.h"

namespace fsdp {

// Not thread-safe: the engine's mutex guards it.
class ZeroCopyGradients {
 public:
  // `places` decides which parameters have zero-copy gradients. Requires: it lives as long.
  ZeroCopyGradients(const UnitContext& unit, const GradientPlaces& places);

  bool lends(int parameter) const { return places_.lends(parameter); }
  // Lets compute wait before the unit's gradients arrive, so that at most two zero-copy gradients
  // of the engine exist (wait 8).
  void open();
  // Takes a parameter's first gradient. Returns true if the tensor is kept as it is: it has no
  // other holder, and its type, order and scale are those that are sent. Else allocates a tensor of
  // LibTorch's for a copy and returns false. Requires: lends(parameter).
  bool lend(int parameter, const at::Tensor& gradient, DType dtype);
  bool has(int parameter) const { return of(parameter) != nullptr; }
  // Returns the gradient's memory. Requires: has(parameter).
  std::byte* place(int parameter) const;
  // Allocates zeros for a gradient that did not arrive.
  void lend_zeros(int parameter);

  // Returns true if the segment has a zero-copy gradient. The functions below require that.
  bool has_segment(int segment) const { return zero_copy_[segment] != nullptr; }
  // Allocates memory of compute's for `numel` elements of the sum, if it does not go to the main
  // gradient directly.
  void make_room(int segment, int64_t numel);
  // Returns the part of a collective that sends the segment and receives `numel` elements at
  // `landing`; null: in the memory of make_room. The slot's part of the segment is at `slot_at`.
  CollectivePart part(int segment, const std::byte* slot_at, int64_t numel, std::byte* landing);

  // Counts the gradients as slots, because they stay after the pass.
  void keep();
  // Releases the gradients behind the work that `stream` has so far. `reduced`: that is their
  // reduction.
  void give_back(Stream& stream, bool reduced);

 private:
  // Shared with the stream that reduces it: the unit may capture the next gradient before this one
  // is reduced.
  struct ZeroCopy {
    at::Tensor gradient;  // elements in the parameter's memory order; without another holder
    at::Tensor reduced;   // this rank's slice, if it cannot go to the main gradient directly
    std::array<SendRun, 3> runs;
  };
  const std::shared_ptr<ZeroCopy>& of(int parameter) const {
    return zero_copy_[unit_.layout.segment_of(parameter)];
  }
  at::TensorOptions options() const;  // of a gradient as it is sent
  ZeroCopy& make(int parameter);

  const UnitContext& unit_;
  const GradientPlaces& places_;
  std::vector<std::shared_ptr<ZeroCopy>> zero_copy_;  // by segment; null: none has arrived
  int64_t kept_bytes_ = 0;                            // counted in the ledger
};

}  // namespace fsdp
