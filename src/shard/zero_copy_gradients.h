// ZeroCopyGradients holds a unit's large gradients until they are reduced. They stay in the tensors
// that LibTorch allocated: [Note: zero-copy gradients] in gradient_places.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/gradient_places.h"
#include "shard/unit_context.h"

namespace fsdp {

// The zero-copy gradients of one unit. Not thread-safe: the engine's mutex guards it.
class ZeroCopyGradients {
 public:
  // `places` decides which parameters have zero-copy gradients. `places` must outlive this object.
  ZeroCopyGradients(const UnitContext& unit, const GradientPlaces& places);

  bool lends(int parameter) const { return places_.lends(parameter); }
  // Makes the compute stream wait before the unit's gradients arrive, so that at most two zero-copy
  // gradients of the engine exist (wait 8).
  void open();
  // Accepts a parameter's first gradient. Returns true if the tensor is kept as it is. This
  // requires that the tensor has no other holder, and that it needs no cast, reordering or scaling
  // before it is sent. If not, allocates a LibTorch tensor for a copy and returns false.
  // lends(parameter) must be true.
  bool lend(int parameter, const at::Tensor& gradient, DType dtype);
  bool has(int parameter) const { return of(parameter) != nullptr; }
  // Returns the address of the gradient. has(parameter) must be true.
  std::byte* place(int parameter) const;
  // Allocates memory for a gradient that did not arrive. The caller fills it.
  void make_missing(int parameter);
  // Returns true if the gradient and its memory have no other holder.
  static bool is_sole(const at::Tensor& gradient);

  // Returns true if the segment has a zero-copy gradient. The functions below require this.
  bool has_segment(int segment) const { return zero_copy_[segment] != nullptr; }
  // Allocates memory from LibTorch for `numel` elements of the reduced gradient. This memory is
  // needed if the collective cannot write its result directly to the main gradients.
  void make_room(int segment, int64_t numel);
  // Returns the part of a collective that sends the segment and receives `numel` elements. The
  // slot's part of the segment is at `slot_at`. The elements are received at `landing` or, if
  // `landing` is null, in the memory that make_room allocated.
  CollectivePart part(int segment, const std::byte* slot_at, int64_t numel, std::byte* landing);

  // Counts the gradients as reduce slots in the ledger, because they keep their memory after the
  // pass.
  void keep();
  // Releases the gradients once all work that was issued to `stream` so far is done. `reduced` is
  // true if this work is their reduction.
  void give_back(Stream& stream, bool reduced);

 private:
  // A zero-copy gradient. The stream that reduces it shares the object, because the unit may
  // capture its next gradient before this one is reduced.
  struct ZeroCopy {
    at::Tensor gradient;  // in the parameter's memory order, without another holder
    at::Tensor reduced;   // this rank's slice, if the main gradient cannot receive it directly
    std::array<SendRun, 3> runs;
  };
  const std::shared_ptr<ZeroCopy>& of(int parameter) const {
    return zero_copy_[unit_.layout.segment_of(parameter)];
  }
  at::TensorOptions options() const;  // of a gradient in the type that is sent
  ZeroCopy& make(int parameter);

  const UnitContext& unit_;
  const GradientPlaces& places_;
  std::vector<std::shared_ptr<ZeroCopy>> zero_copy_;  // by segment; null: none has arrived
  int64_t kept_bytes_ = 0;                            // bytes that keep() has counted in the ledger
};

}  // namespace fsdp
