// A unit's gradients, from autograd's hook to the main gradient.
//
//   kNone ──open──> kCapturing ──reduce──> kNone
//                       └──keep──> kKept ──open──> kCapturing
//
// They arrive in a slot or in the main gradient. Streams: docs/streams.md, waits 5, 6 and 8. Not
// thread-safe: the engine's mutex covers it.
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
  // `parameters`: the module's tensors; they and `main` live as long.
  UnitGradients(const UnitContext& unit, MainShards& main,
                const std::vector<at::Tensor>& parameters);

  GradientState state() const { return state_; }
  MainGradients& main() { return main_; }
  const MainGradients& main() const { return main_; }

  // They arrive in the main gradient itself, which is taken when the unit opens.
  bool captures_in_place() const;
  // Of the slot that open takes where they do not.
  int64_t reduce_slot_bytes() const { return captures_in_place() ? 0 : places_.slot_bytes(); }
  // The same where main gradients of an earlier backward are there.
  int64_t adding_slot_bytes() const {
    return captures_in_place() && adds_in_place() ? 0 : places_.slot_bytes();
  }
  // The parameter's gradient stays LibTorch's until it is reduced: [Note: zero-copy gradients].
  bool lends(int parameter) const { return places_.lends(parameter); }
  // Of whole gradients between passes that do not reduce.
  int64_t kept_bytes() const;

  // `sync`: what this pass will do with them.
  // Errors: StateError for a pass that reduces within groups alone after one that did over all.
  void open(GradientSync sync);
  // Requires: kCapturing. Errors: InvalidArgument for a gradient that is sparse or not floating.
  void capture(int parameter, const at::Tensor& gradient);
  // Zero-fills what did not arrive, reduces over the ranks and adds to the main gradient; with
  // `across`, what of it was reduced within groups alone is summed over the groups as well.
  void reduce(bool across);
  // The same for a main gradient to which the pass has added nothing. Nothing where none awaits it.
  void sum_across();
  bool await_across() const { return groups_.are_awaited(); }
  void keep();
  // Throws away whole gradients without reducing.
  void drop();
  // After a failed backward: what only this pass has captured is thrown away. If gradients of other
  // passes or finished reductions are left, they cannot be told apart any more: every use of them
  // throws until zero.
  void abandon();
  // Nothing is left: no main gradient, none that is kept.
  void zero();
  // The same for some parameters of the unit: zeros are left of them. Once that is so of all that
  // are trainable, nothing is left.
  void zero(std::span<const int> parameters);

  // What was done to the `.grad` of main shards' views. Before the main gradient is read or
  // written.
  // Errors: StateError if the gradients are mixed.
  void settle();
  // Errors: StateError if they are.
  void require_unmixed() const;
  // Views of main shards were made, or gradients are kept from here on: what is in their `.grad`.
  void show() {
    main_.attach_views();
    if (state_ == GradientState::kKept) main_.guard_views();
  }
  // The layout has another trainable segment. Requires: kNone.
  void make_places();

 private:
  enum class Sink : uint8_t {
    kSlot,      // as they are reduced
    kWideSlot,  // [Note: kept gradients are wide] in unit_gradients.cpp
    kMain,      // captures_in_place: no copy, no slot
  };
  Sink sink_for(GradientSync sync) const;
  bool is_any_left() const;
  // Requires: not kMain.
  GradientSlot& slot() { return sink_ == Sink::kWideSlot ? wide_slot_ : slot_; }
  // Returns where an element of a trainable segment arrives that is not lent; null in a segment of
  // empty parameters.
  std::byte* place(int segment, int64_t element);
  DType dtype() const { return sink_ == Sink::kSlot ? slot_.dtype() : DType::kFloat32; }
  // Other ranks have nothing to add to what arrives in the main gradient.
  bool adds_in_place() const { return unit_.collectives.after_backward.empty(); }
  void adopt_user_gradients();
  void zero_gaps(Stream& stream);
  void zero_missing();
  void narrow();
  std::byte* place_of(int parameter);
  // `lands`: where the sum lies then is in the main gradients.
  void issue(const AxisCollective& move, std::vector<Summed>& sums, bool lands);
  // Once `last_user_` has passed what uses them.
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
  Stream* last_user_ = nullptr;   // of what open took
  Sink sink_ = Sink::kSlot;       // of the last open
  bool adds_to_earlier_ = false;  // while capturing: earlier passes' gradients are in it too
  bool mixed_ = false;            // by a failed backward, until zero
  std::vector<char> arrived_;     // by parameter
  Event captured_;
};

}  // namespace fsdp
