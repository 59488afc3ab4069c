// UnitGradients takes a unit's gradients from autograd's hook to the main gradient.
//
//   kNone ──open──> kCapturing ──reduce──> kNone
//                       └──keep──> kKept ──open──> kCapturing
//
// Gradients are captured in a slot or in the main gradient. Streams: docs/streams.md, waits 5, 6
// and 8. Not thread-safe: the engine's mutex guards it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "plan/unit_actions.h"
#include "shard/gradient_slot.h"
#include "shard/gradient_table.h"
#include "shard/group_sums.h"
#include "shard/main_gradients.h"
#include "shard/zero_copy_gradients.h"

namespace fsdp {

class UnitGradients {
 public:
  // `parameters` are the module's tensors. Requires: all arguments live as long.
  UnitGradients(const UnitContext& unit, MainShards& main,
                const std::vector<at::Tensor>& parameters);

  GradientState state() const { return state_; }
  MainGradients& main() { return main_; }
  const MainGradients& main() const { return main_; }

  // Returns true if gradients are captured in the main gradient itself, which open then acquires.
  bool captures_in_place() const;
  // Returns the size of the slot that open acquires, or 0.
  int64_t reduce_slot_bytes() const { return captures_in_place() ? 0 : places_.slot_bytes(); }
  // Returns the same, once an earlier backward has left main gradients.
  int64_t adding_slot_bytes() const {
    return captures_in_place() && adds_in_place() ? 0 : places_.slot_bytes();
  }
  // Returns true if the parameter's gradient is zero-copy: [Note: zero-copy gradients].
  bool lends(int parameter) const { return places_.lends(parameter); }
  // Returns the bytes of whole gradients between passes that do not reduce.
  int64_t kept_bytes() const;

  // Acquires memory for the gradients, with which this pass will do what `sync` says.
  // Errors: StateError for a pass that reduces within groups only, after one that reduced over all.
  void open(GradientSync sync);
  // Captures a gradient. Requires: kCapturing. Errors: InvalidArgument for a gradient that is
  // sparse or not floating.
  void capture(int parameter, const at::Tensor& gradient);
  // Zero-fills missing gradients, reduces over the ranks and adds to the main gradient. With
  // `across` sums within groups, also those of earlier passes, are then summed over the groups.
  void reduce(bool across);
  // Sums a main gradient to which the pass has added nothing over the groups, if it awaits that.
  void sum_across();
  bool await_across() const { return groups_.are_awaited(); }
  // Keeps whole gradients without a reduction.
  void keep();
  // Drops whole gradients.
  void drop();
  // Drops what a failed backward captured. If it was added to gradients of other passes, or
  // finished reductions are left, they cannot be separated: every use of them throws until zero.
  void abandon();
  // Drops all gradients: main gradients and kept ones.
  void zero();
  // Zeroes the gradients of some parameters. Once all trainable parameters are zeroed, drops all.
  void zero(std::span<const int> parameters);

  // Adopts changes of the `.grad` of main shards' views. Called before the main gradient is read or
  // written. Errors: StateError if the gradients are mixed.
  void settle();
  // Checks that a failed backward has not mixed gradients. Errors: StateError.
  void require_unmixed() const;
  // Sets the `.grad` of main shards' views. Called when views were made or gradients are kept.
  void show() {
    main_.attach_views();
    if (state_ == GradientState::kKept) main_.guard_views();
  }
  // Assigns places again after the layout has got another trainable segment. Requires: kNone.
  void make_places();

 private:
  enum class Sink : uint8_t {
    kSlot,      // in the type in which they are reduced
    kWideSlot,  // [Note: kept gradients are wide] in unit_gradients.cpp
    kMain,      // captures_in_place: no slot
  };
  Sink sink_for(GradientSync sync) const;
  bool is_any_left() const;
  // Returns the slot that captures. Requires: not kMain.
  GradientSlot& slot() { return sink_ == Sink::kWideSlot ? wide_slot_ : slot_; }
  // Returns the place of an element of a trainable segment, null if the segment's parameters are
  // empty. Requires: the element is not part of a zero-copy gradient.
  std::byte* place(int segment, int64_t element);
  DType dtype() const { return sink_ == Sink::kSlot ? slot_.dtype() : DType::kFloat32; }
  // Returns true if no reduction follows: gradients of further passes can be added in place.
  bool adds_in_place() const { return unit_.collectives.after_backward.empty(); }
  void adopt_user_gradients();
  void zero_gaps(Stream& stream);
  void zero_missing();
  void narrow();
  std::byte* place_of(int parameter);
  // Issues one collective on the sums. `lands`: it writes the result into the main gradients.
  void issue(const AxisCollective& move, std::vector<Summed>& sums, bool lands);
  // Releases the slot and zero-copy gradients behind the work of `last_user_`.
  void give_back(bool reduced);

  const UnitContext& unit_;
  MainGradients main_;
  GradientPlaces places_;
  GradientPlaces wide_places_;
  GradientSlot slot_;
  GradientSlot wide_slot_;
  ZeroCopyGradients zero_copy_;
  GroupSums groups_;
  GradientTable table_;
  GradientState state_ = GradientState::kNone;
  Stream* last_user_ = nullptr;   // of the memory that open acquired
  Sink sink_ = Sink::kSlot;       // of the last open
  bool adds_to_earlier_ = false;  // while capturing: the memory holds earlier passes' gradients too
  bool mixed_ = false;            // by a failed backward, until zero
  std::vector<char> arrived_;     // by parameter
  Event captured_;
};

}  // namespace fsdp
