// UnitGradients moves a unit's gradients from autograd's hook to the main gradients.
//
//   kNone ──open──> kCapturing ──reduce──> kNone
//                       └──keep──> kKept ──open──> kCapturing
//
// Gradients are captured in a slot or in the main gradients. docs/streams.md lists the waits
// between streams (waits 5, 6 and 8). Not thread-safe: the engine's mutex guards it.
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
  // `parameters` are the tensors of the user's module. All arguments must outlive this object.
  UnitGradients(const UnitContext& unit, MainShards& main,
                const std::vector<at::Tensor>& parameters);

  GradientState state() const { return state_; }
  MainGradients& main() { return main_; }
  const MainGradients& main() const { return main_; }

  // Returns true if gradients are captured directly in the main gradients. Then open() acquires the
  // memory of the main gradients.
  bool captures_in_place() const;
  // Returns the size of the slot that open() acquires, or 0 if it acquires none.
  int64_t reduce_slot_bytes() const { return captures_in_place() ? 0 : places_.slot_bytes(); }
  // Returns the size of the slot that open() acquires if an earlier backward has left main
  // gradients.
  int64_t adding_slot_bytes() const {
    return captures_in_place() && adds_in_place() ? 0 : places_.slot_bytes();
  }
  // Returns true if the parameter's gradient is zero-copy (see [Note: zero-copy gradients]).
  bool lends(int parameter) const { return places_.lends(parameter); }
  // Returns the bytes of the whole gradients that are kept between passes that do not reduce.
  int64_t kept_bytes() const;

  // Acquires memory for the gradients. `sync` says how this pass will treat them. Errors:
  // StateError if this pass reduces only within groups, but an earlier pass has reduced over all
  // ranks.
  void open(GradientSync sync);
  // Captures a gradient. The state must be kCapturing. Errors: InvalidArgument if the gradient is
  // sparse or not floating.
  void capture(int parameter, const at::Tensor& gradient);
  // Zero-fills missing gradients, reduces over the ranks, and adds the result to the main
  // gradients. If `across` is true, the sums within groups, including those of earlier passes, are
  // then summed over the groups.
  void reduce(bool across);
  // Sums the main gradients over the groups if they await this sum. Called if the pass has added
  // nothing to the unit's main gradients.
  void sum_across();
  bool await_across() const { return groups_.are_awaited(); }
  // Ends a capture without a reduction. The whole gradients are kept, and gradients of later passes
  // are added to them.
  void keep();
  // Drops whole gradients that are captured or kept, but not main gradients.
  void drop();
  // Drops the gradients that a failed backward captured. Dropping is impossible if the gradients
  // were added to gradients of other passes, or if finished reductions have added some of them to
  // the main gradients. In this case the gradients are mixed: every use of them throws until
  // zero().
  void abandon();
  // Drops all gradients, both main gradients and kept gradients.
  void zero();
  // Frees the main gradients after an update in backward has used them. Until zero() or the next
  // backward, `.grad` of the main shards' views is a guard.
  void end_update() {
    main_.give_back();
    is_used_ = true;
    show();
  }
  // Zeroes the gradients of some parameters. If all trainable parameters are zeroed by now, it
  // drops all gradients.
  void zero(std::span<const int> parameters);

  // Adopts changes that the user has made to the `.grad` of main shards' views. Must be called
  // before main gradients are read or written. Errors: StateError if the gradients are mixed
  // (abandon).
  void settle();
  // Throws StateError if the gradients are mixed (abandon).
  void require_unmixed() const;
  // Sets the `.grad` of main shards' views to gradients or guards. Called after views were made or
  // gradients were kept.
  void show() {
    main_.attach_views();
    if (state_ == GradientState::kKept || is_used_) main_.guard_views();
  }
  // Assigns new positions after another segment of the layout has become trainable. The state must
  // be kNone.
  void make_places();

 private:
  enum class Sink : uint8_t {
    kSlot,      // a slot of the type in which gradients are reduced
    kWideSlot,  // an fp32 slot: [Note: kept gradients are wide] in unit_gradients.cpp
    kMain,      // no slot: the main gradients (captures_in_place)
  };
  Sink sink_for(GradientSync sync) const;
  bool is_any_left() const;
  // Returns the slot in which gradients are captured. The sink must not be kMain.
  GradientSlot& slot() { return sink_ == Sink::kWideSlot ? wide_slot_ : slot_; }
  // Returns the address of an element of a trainable segment. Null if all parameters of the segment
  // are empty. The element must not be part of a zero-copy gradient.
  std::byte* place(int segment, int64_t element);
  DType dtype() const { return sink_ == Sink::kSlot ? slot_.dtype() : DType::kFloat32; }
  // Returns true if the unit's gradients are not communicated after a backward. Then gradients of
  // further passes can be added in place.
  bool adds_in_place() const { return unit_.collectives.after_backward.empty(); }
  void adopt_user_gradients();
  void zero_gaps(Stream& stream);
  void zero_missing();
  void narrow();
  std::byte* place_of(int parameter);
  // Issues one collective on the sums. If `lands` is true, the collective writes its result into
  // the main gradients.
  void issue(const AxisCollective& move, std::vector<Summed>& sums, bool lands);
  // Releases the slot and zero-copy gradients. Their next users wait for all work that was issued
  // to `last_user_` before.
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
  Stream* last_user_ = nullptr;  // the last stream that used the memory of open()
  Sink sink_ = Sink::kSlot;      // chosen by the last open()
  // While capturing: the memory also holds gradients of earlier passes.
  bool adds_to_earlier_ = false;
  bool mixed_ = false;         // set by a failed backward, reset by zero()
  bool is_used_ = false;       // set by end_update(), reset by zero()
  std::vector<char> arrived_;  // by parameter
  Event captured_;
};

}  // namespace fsdp
