// A unit's parameters, the tensors of the user's module, and the source of the memory that they are
// seated on.
//
//   kSharded ──unshard──> kGathering ──wait_for_unshard──> kUnsharded ──reshard──> kSharded
//
// A source that keeps parameters whole goes through the same states; nothing is gathered then.
// Streams: docs/streams.md, waits 2 to 4 and 10. Not thread-safe: the engine's mutex covers it.
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
  // `tensors` (layout.parameters() order) are bound to the unit's storages for good.
  // Requires: none has a gradient. `owner`: see ParameterBindings.
  UnitParameters(const UnitContext& unit, MainShards& main, std::vector<at::Tensor> tensors,
                 touch_trap::Touched* owner);

  const std::vector<at::Tensor>& tensors() const { return bindings_.tensors(); }
  ParameterState state() const { return state_; }
  // Of the slot that unshard takes; 0 where it takes none.
  int64_t slot_bytes() const { return usual_->slot_bytes(); }
  int64_t resident_bytes() const { return usual_->resident_bytes(); }
  // See ParameterSource.
  std::byte* copy_of_main(int segment) const { return usual_->copy_of_main(segment); }

  // Issues the gather, where there is one. A prefetch returns false, having done nothing, if no
  // planned slot is free.
  bool unshard(Urgency urgency);
  // To memory that is this rank's own in any case: the caller may write to it.
  void unshard_own_copy();
  void wait_for_unshard();
  // From any state but kSharded; a gather still under way is waited for by the slot's next user.
  void reshard();

  // FQN of the first parameter that was written since it was seated, or given other storage; empty
  // if none was. What is written while parameters are seated is lost, but for write_back and where
  // the source keeps it.
  std::string first_written();
  bool keeps_writes() const { return source_->keeps_writes(); }
  // Where it does: what was written is the parameters' value now, as in plain LibTorch, and no
  // change for a graph that was made after it.
  void take_kept_writes();
  // Parameters written since they were seated, or given other storage, go back into the main
  // shards: each rank's own slice of what it has seated, or of rank 0's values (collective; always
  // where whole main shards stand on several ranks, which must not drift apart).
  // Requires: kUnsharded.
  void write_back(bool from_rank_zero);

  // See ParameterSource.
  void main_changes(bool copies_written) { usual_->main_changes(copies_written); }
  // After a known change graphs that have saved the parameters will throw, and resident copies are
  // made anew.
  void follow_main(const MainChange& change);

  // [Note: guarded gradients] in parameter_bindings.h.
  void guard_gradients() { bindings_.guard_gradients(); }
  ParameterBindings::Guards guards() const { return bindings_.guards(); }
  // Errors: StateError if a parameter was given other storage.
  void check_bindings() const;
  // Why an access to a parameter throws from now on.
  void set_reason(std::string_view reason, std::string_view hint) {
    bindings_.set_reason(reason, hint);
  }

 private:
  // Errors: StateError naming both states if the unit is in another one.
  void require(ParameterState expected, std::string_view transition) const;
  void bind();
  void broadcast_changed(std::vector<uint8_t>& changed) const;

  const UnitContext& unit_;
  MainShards& main_;
  ParameterBindings bindings_;
  const std::unique_ptr<ParameterSource> usual_;
  const std::unique_ptr<ParameterSource> own_copy_;  // null: usual_ is such a one
  ParameterSource* source_;                          // of the last unshard
  ParameterState state_ = ParameterState::kSharded;
  std::vector<std::byte*> places_;  // while seated: where each segment lies whole
};

}  // namespace fsdp
