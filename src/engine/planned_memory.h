// The memory plan of an engine, and the pools that follow it: played from the order of units that
// was seen last, and what passes have taken beyond it.
#pragma once

#include <fsdp/memory.h>

#include <memory>
#include <vector>

#include "engine/engine_unit.h"
#include "plan/pass.h"
#include "shard/shard_context.h"

namespace fsdp {

// Not thread-safe: the engine's mutex covers it.
class PlannedMemory {
 public:
  // Both live as long.
  PlannedMemory(ShardContext& context, const std::vector<std::shared_ptr<EngineUnit>>& units)
      : context_(context), units_(units) {}

  const MemoryPlan& plan() const { return plan_; }

  // Plays the pass that is expected. Requires: before the first pass, and where units or their
  // trainable parameters have changed.
  void remake(const Pass& pass);
  // What they take at their highest is looked at when the pass is over.
  void begin_forward() { context_.memory.ledger.begin_phase(); }
  // `finds_gradients`: an earlier backward has left some, which no step has used.
  void begin_backward(bool finds_gradients);
  // The pass that has just been was not like the one before.
  void follow(const Pass& pass);
  // It was like the one before: what it took beyond the plan belongs to it from now on.
  void learn_from_overflow(const Pass& pass);
  // Optimizers' own; before the first pass, or between passes.
  void add_optimizer_state(int64_t bytes);
  // A unit is about to capture gradients. If the backward adds to those of an earlier one, `pass`
  // is planned so from now on, before it takes what it needs more.
  void expect_captures(const Pass& pass);
  // GradSync was used: whole gradients that wait are no news.
  void expect_kept_gradients() { keeps_gradients_ = true; }

 private:
  void warn_of_overflow();
  void add_learned();
  // Where the plan has them.
  MemoryBytes& main_gradients_after_backward();

  ShardContext& context_;
  const std::vector<std::shared_ptr<EngineUnit>>& units_;
  MemoryPlan plan_;
  int64_t optimizer_state_bytes_ = 0;
  int64_t learned_gradients_ = 0;  // bytes of main gradients that the played order does not show
  MemoryBytes forward_peak_;       // of the pass under way
  MemoryBytes learned_forward_;    // of a forward, and of a backward, that was higher than the plan
  MemoryBytes learned_peak_;
  bool finds_gradients_ = false;  // the backward under way
  bool accumulates_ = false;
  bool keeps_gradients_ = false;
  bool warned_ = false;
};

}  // namespace fsdp
