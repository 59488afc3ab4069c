// PlannedMemory: the memory plan of an engine and the pools that follow it. The plan plays the
// record of the last pass and adds the memory that passes took beyond it.
#pragma once

#include <fsdp/memory.h>

#include <memory>
#include <vector>

#include "engine/engine_unit.h"
#include "plan/pass.h"
#include "shard/shard_context.h"

namespace fsdp {

// The plan of an engine and its pools. Not thread-safe: the backward scheduler's mutex covers it.
class PlannedMemory {
 public:
  // Requires: both outlive it.
  PlannedMemory(ShardContext& context, const std::vector<std::shared_ptr<EngineUnit>>& units)
      : context_(context), units_(units) {}

  const MemoryPlan& plan() const { return plan_; }

  // Makes the plan anew from the pass that is expected. Called before the first pass, and after a
  // change of units or of their trainable parameters.
  void remake(const Pass& pass);
  // Begins to measure the peak of a forward, which the end of the pass compares with the plan.
  void begin_forward() { context_.memory.ledger.begin_phase(); }
  // Begins to measure the peak of a backward. `finds_gradients`: an earlier backward has left
  // gradients that no step has used.
  void begin_backward(bool finds_gradients);
  // Makes the plan anew after a pass that differed from the one before.
  void follow(const Pass& pass);
  // Adds the memory that a pass took beyond the plan, after a pass like the one before.
  void learn_from_overflow(const Pass& pass);
  // Counts optimizer state; negative bytes are returned. Called before the first pass or between
  // passes.
  void add_optimizer_state(int64_t bytes);
  // Called when a unit is about to capture gradients. If the backward adds to those of an earlier
  // one, plans `pass` so from now on, before it needs more memory.
  void expect_captures(const Pass& pass);
  // Called when GradSync keeps gradients: their slots are then no reason for a warning.
  void expect_kept_gradients() { keeps_gradients_ = true; }

 private:
  void warn_of_overflow();
  void add_learned();
  // Returns the plan's bytes that include main gradients after backward: the device's or the
  // host's.
  MemoryBytes& main_gradients_after_backward();

  ShardContext& context_;
  const std::vector<std::shared_ptr<EngineUnit>>& units_;
  MemoryPlan plan_;
  int64_t optimizer_state_bytes_ = 0;
  int64_t learned_gradients_ = 0;  // bytes of main gradients that the played order does not show
  MemoryBytes forward_peak_;       // of the running pass
  MemoryBytes learned_forward_;    // of a forward, and of a backward, that was higher than the plan
  MemoryBytes learned_peak_;
  bool finds_gradients_ = false;  // the running backward does
  bool accumulates_ = false;
  bool keeps_gradients_ = false;
  bool warned_ = false;
};

}  // namespace fsdp
