// PlannedMemory: the memory plan of an engine, and the pools that follow the plan. The plan
// simulates the record of the last pass and adds the memory that passes used beyond the simulation.
#pragma once

#include <fsdp/memory.h>

#include <memory>
#include <vector>

#include "engine/engine_unit.h"
#include "plan/pass.h"
#include "shard/shard_context.h"

namespace fsdp {

// The plan of an engine and its pools. Not thread-safe: the backward scheduler's mutex must be
// held.
class PlannedMemory {
 public:
  // Requires: both arguments outlive this object.
  PlannedMemory(ShardContext& context, const std::vector<std::shared_ptr<EngineUnit>>& units)
      : context_(context), units_(units) {}

  const MemoryPlan& plan() const { return plan_; }

  // Makes the plan again, from the pass that is expected next. Called before the first pass, and
  // after a change of units or of their trainable parameters.
  void remake(const Pass& pass);
  // Begins to measure the peak of a forward. At the end of the pass, the peak is compared with the
  // plan.
  void begin_forward() { context_.memory.ledger.begin_phase(); }
  // Begins to measure the peak of a backward. `finds_gradients` is true if an earlier backward has
  // left gradients that no step has used.
  void begin_backward(bool finds_gradients);
  // Makes the plan again. Called after a pass that differed from the pass before it.
  void follow(const Pass& pass);
  // Adds the memory that a pass used beyond the plan. Called after a pass that equals the pass
  // before it.
  void learn_from_overflow(const Pass& pass);
  // Adds `bytes` of kOptimizerState or kCheckpointStaging to the plan; negative bytes are
  // subtracted. Called before the first pass or between passes.
  void add(MemoryCategory category, int64_t bytes);
  // Prepares the plan for a unit that is about to capture gradients. If the backward adds to
  // gradients of an earlier backward, changes the plan before the backward needs the additional
  // memory. From then on, the plan assumes that `pass` accumulates gradients.
  void expect_captures(const Pass& pass);
  // Notes that a GradSync scope keeps gradients. The slots of these gradients then cause no
  // warning.
  void expect_kept_gradients() { keeps_gradients_ = true; }

 private:
  void warn_of_overflow();
  void add_learned();
  MemoryLedger& ledger_of(MemoryCategory category);
  bool on_gpu() const;
  // Returns the plan's bytes after backward: those of the device, or those of the host if main
  // gradients reside on the host.
  MemoryBytes& main_gradients_after_backward();

  ShardContext& context_;
  const std::vector<std::shared_ptr<EngineUnit>>& units_;
  MemoryPlan plan_;
  MemoryBytes added_;              // by add()
  int64_t learned_gradients_ = 0;  // bytes of main gradients that the simulated order does not need
  MemoryBytes forward_peak_;       // highest peak of a forward of the running pass
  MemoryBytes learned_forward_;    // peaks of a forward and a backward that exceeded the plan
  MemoryBytes learned_peak_;
  bool finds_gradients_ = false;  // the argument of the last begin_backward
  bool accumulates_ = false;
  bool keeps_gradients_ = false;
  bool warned_ = false;
};

}  // namespace fsdp
