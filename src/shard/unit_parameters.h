// UnitParameters unshards and reshards a unit's parameters, which are the tensors of the user's
// module. A ParameterSource provides the memory to which they are bound.
//
//   kSharded ──unshard──> kGathering ──wait_for_unshard──> kUnsharded ──reshard──> kSharded
//
// If the source keeps parameters whole, the states are the same, but nothing is gathered.
// docs/streams.md lists the waits between streams (waits 2 to 4 and 10). Not thread-safe: the
// engine's mutex guards it.
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
  // `tensors` must be in the order of layout.parameters(). They become views of the unit's storages
  // permanently. No tensor may have a gradient. `owner`: see ParameterBindings.
  UnitParameters(const UnitContext& unit, MainShards& main, std::vector<at::Tensor> tensors,
                 touch_trap::Touched* owner);

  const std::vector<at::Tensor>& tensors() const { return bindings_.tensors(); }
  ParameterState state() const { return state_; }
  // Returns the size of the slot that unshard() acquires, or 0 if it acquires none.
  int64_t slot_bytes() const { return usual_->slot_bytes(); }
  int64_t resident_bytes() const { return usual_->resident_bytes(); }
  // Returns the resident copy of whole main shards, see ParameterSource.
  std::byte* copy_of_main(int segment) const { return usual_->copy_of_main(segment); }

  // Issues the gather if the source needs one. Returns false, without effect, if `urgency` is
  // kPrefetch and no slot is free.
  bool unshard(Urgency urgency);
  // Unshards on demand into memory that belongs to this rank, so that the caller may write it.
  void unshard_own_copy();
  // Makes the compute stream wait for the gather and binds the parameters.
  void wait_for_unshard();
  // Unbinds the parameters and releases their memory. The state must not be kSharded. If the gather
  // is still in flight, the next user of the slot waits for it.
  void reshard();

  // Returns the FQN of the first parameter whose values or storage the user has changed since it
  // was bound, or an empty string if there is none. Such changes are lost unless write_back stores
  // them or the source keeps writes (keeps_writes).
  std::string first_written();
  bool keeps_writes() const { return source_->keeps_writes(); }
  // If the source keeps writes, accepts the user's writes as the present values of the parameters,
  // as plain LibTorch does. A write does not count as a change for a graph that was made after it.
  void take_kept_writes();
  // Finds the parameters whose values or storage were changed after they were bound, and copies
  // their values into the main shards. With `from_rank_zero` each rank takes its slice from the
  // values of rank 0 (collective). Otherwise each rank takes the slice from its own values. But if
  // several ranks have whole main shards, the values of rank 0 are used in any case, because these
  // shards must stay equal. The state must be kUnsharded.
  void write_back(bool from_rank_zero);

  // Notes that the caller is about to count a change of the main shards, see ParameterSource.
  void main_changes(bool copies_written) { usual_->main_changes(copies_written); }
  // Reacts to changes of the main shards and updates resident copies. After a known change, a graph
  // that saved the parameters throws in backward.
  void follow_main(const MainChange& change);

  // These functions handle guards: [Note: guarded gradients] in parameter_bindings.h.
  void guard_gradients() { bindings_.guard_gradients(); }
  ParameterBindings::Guards guards() const { return bindings_.guards(); }
  // Checks the bindings. Errors: StateError if the storage of a parameter was replaced.
  void check_bindings() const;
  // Sets the reason and the hint that an access to a parameter reports from now on.
  void set_reason(std::string_view reason, std::string_view hint) {
    bindings_.set_reason(reason, hint);
  }

 private:
  // Checks the state. Errors: StateError, which names both states, if the unit is not in
  // `expected`.
  void require(ParameterState expected, std::string_view transition) const;
  void bind();
  void broadcast_changed(std::vector<uint8_t>& changed) const;

  const UnitContext& unit_;
  MainShards& main_;
  ParameterBindings bindings_;
  const std::unique_ptr<ParameterSource> usual_;
  // Null: usual_ already uses this rank's own memory.
  const std::unique_ptr<ParameterSource> own_copy_;
  ParameterSource* source_;  // source used by the last unshard
  ParameterState state_ = ParameterState::kSharded;
  std::vector<std::byte*> places_;  // while bound: whole memory by segment
};

}  // namespace fsdp
