// UnitParameters unshards and reshards a unit's parameters, the tensors of the user's module. A
// ParameterSource provides the memory to which they are bound.
//
//   kSharded ──unshard──> kGathering ──wait_for_unshard──> kUnsharded ──reshard──> kSharded
//
// If the source keeps parameters whole, the states are the same and nothing is gathered. Streams:
// docs/streams.md, waits 2 to 4 and 10. Not thread-safe: the engine's mutex guards it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan/unit_actions.h"
#include "shard/main_shards.h"
#include "shard/parameter_bindings.h"
#include "shard/parameter_sources.h"

namespace fsdp {

class UnitParameters {
 public:
  // `tensors` (in layout.parameters() order) become views of the unit's storages for life. `owner`:
  // see ParameterBindings. Requires: none has a gradient.
  UnitParameters(const UnitContext& unit, MainShards& main, std::vector<at::Tensor> tensors,
                 touch_trap::Touched* owner);

  const std::vector<at::Tensor>& tensors() const { return bindings_.tensors(); }
  ParameterState state() const { return state_; }
  // Returns the size of the slot that unshard acquires, or 0.
  int64_t slot_bytes() const { return usual_->slot_bytes(); }
  int64_t resident_bytes() const { return usual_->resident_bytes(); }
  // See ParameterSource.
  std::byte* copy_of_main(int segment) const { return usual_->copy_of_main(segment); }

  // Issues the gather, if there is one. Returns false, without effect, if a prefetch finds no free
  // slot.
  bool unshard(Urgency urgency);
  // Does the same on demand, into memory that is this rank's own: the caller may write it.
  void unshard_own_copy();
  // Lets compute wait for the gather and binds the parameters.
  void wait_for_unshard();
  // Unbinds the parameters and releases their memory. Requires: not kSharded. The slot's next user
  // waits for a gather that is still in flight.
  void reshard();

  // Returns the FQN of the first parameter that was written since it was bound, or given other
  // storage; empty if none was. Writes to bound parameters are lost, except by write_back or if the
  // source keeps them.
  std::string first_written();
  bool keeps_writes() const { return source_->keeps_writes(); }
  // Accepts such writes: they are the parameters' value now, as in plain LibTorch, and no change
  // for a graph that was made after them.
  void take_kept_writes();
  // Copies parameters that were written since they were bound, or given other storage, into the
  // main shards. Each rank takes its slice from its own values, or from rank 0's (collective). Rank
  // 0's are taken in any case if several ranks have whole main shards, which must stay equal.
  // Requires: kUnsharded.
  void write_back(bool from_rank_zero);

  // See ParameterSource.
  void main_changes(bool copies_written) { usual_->main_changes(copies_written); }
  // Follows changes of the main shards. After a known change graphs that saved the parameters throw
  // in backward. Resident copies are updated.
  void follow_main(const MainChange& change);

  // [Note: guarded gradients] in parameter_bindings.h.
  void guard_gradients() { bindings_.guard_gradients(); }
  ParameterBindings::Guards guards() const { return bindings_.guards(); }
  // Errors: StateError if a parameter was given other storage.
  void check_bindings() const;
  // Sets the reason that an access to a parameter gives from now on.
  void set_reason(std::string_view reason, std::string_view hint) {
    bindings_.set_reason(reason, hint);
  }

 private:
  // Errors: StateError that names both states if the unit is in another one.
  void require(ParameterState expected, std::string_view transition) const;
  void bind();
  void broadcast_changed(std::vector<uint8_t>& changed) const;

  const UnitContext& unit_;
  MainShards& main_;
  ParameterBindings bindings_;
  const std::unique_ptr<ParameterSource> usual_;
  const std::unique_ptr<ParameterSource> own_copy_;  // null: usual_ is this rank's own
  ParameterSource* source_;                          // of the last unshard
  ParameterState state_ = ParameterState::kSharded;
  std::vector<std::byte*> places_;  // while bound: whole memory by segment
};

}  // namespace fsdp
