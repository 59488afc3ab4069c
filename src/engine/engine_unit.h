// One unit as the engine sees it: its bytes, its options, its calls and hooks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/clock.h"
#include "shard/shard_unit.h"
#include "shard/torch_compat.h"
#include "shard/torch_cuda.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

class EngineState;
class EngineUnit;

// What the storages of a unit name as theirs: of its shards, and of its parameters if it is by
// policy.
struct TouchedUnit final : touch_trap::Touched {
  EngineUnit* unit = nullptr;
  bool is_by_policy = false;
};

// One forward of a unit, and what there is of it as long as it runs.
struct ForwardCall final : Call {
  using Call::Call;
  bool in_graph = false;  // backward can reach what it made
  bool runs = false;      // the clock has it
  std::optional<torch_cuda::NamedRange> range;
  std::optional<StreamSpan> span;
};

// Owned by EngineState; shared with the module's UnitBase and the hooks, all weakly, and by a call
// while it runs.
class EngineUnit : public ClockedUnit, public std::enable_shared_from_this<EngineUnit> {
 public:
  // `touched`: what `shard`'s storages name.
  EngineUnit(EngineState& engine, int index, std::optional<DType> input_dtype,
             std::unique_ptr<TouchedUnit> touched, std::unique_ptr<ShardUnit> shard);

  // Arms the gradient hooks of parameters that require a gradient and have none: at the start, or
  // when torch::load has given a parameter a new node. Requires: the unit is owned by a shared_ptr.
  void capture_gradients();
  // Takes parameters in that were frozen and now require a gradient. Returns whether there were
  // any.
  bool unfreeze();
  // Looks whether a parameter was written where it is lost; throw_if_written says so later, when
  // the unit's bytes are back in order.
  void note_written();
  void throw_if_written();
  void forget_written() { written_.clear(); }

  // Before work on compute: LibTorch's current stream, from here on, if it `may_change`.
  // Errors: StateError if it has changed and may not.
  void follow_compute(bool may_change);

  // Errors: StateError while autocast is on for the engine's device.
  void require_no_autocast() const;

  // Behind it the unit's parameters are whole, and `call` is the innermost that runs.
  void begin_forward(const std::shared_ptr<ForwardCall>& call);

  // ---- units by policy: touched_units.cpp ----

  bool is_by_policy() const { return touched_->is_by_policy; }
  bool is_inside(const EngineUnit& other) const;
  // A call in whose forward an operator made no node that could be hooked, as inside a custom
  // Function: its backward is noticed when it reads, or hands over a gradient.
  void keep_unhooked(const std::shared_ptr<Call>& call);
  // A pass is over; or a forward that has left no graph, since the mark at its begin.
  void forget_unhooked() { unhooked_.clear(); }
  void mark_unhooked() { marked_ = unhooked_.size(); }
  void forget_unhooked_since_mark();
  // The newest of them that node `sequence` of graph task `task` can belong to fires. False: there
  // is none.
  bool fire_unhooked(int task, uint64_t sequence);
  // Gradients that module->zero_grad() has taken away are zero from here on.
  // Errors: StateError where some of the unit's are.
  void follow_zero_grad();

  // Errors: StateError where a step cannot take the unit's gradients: they wait to be reduced, or
  // to be summed over groups.
  void require_complete_gradients() const;
  // An operator of the caller's on its main shard or main gradient. Errors: StateError where
  // fsdp::Optimizer's step would refuse it.
  void follow_shard_touch(const touch_trap::ShardTouch& touch);

  // "reduce of unit 'layers.0'": for errors.
  std::string describe(std::string_view what) const;

  // The clock's side.
  void open(Call& call, bool captures) override;
  void close(bool captures) override;
  void rest() override;
  void abandon() override;
  void end_forward(Call& call, bool failed) override;

  EngineState& engine;
  const int index;
  torch::nn::Module* module = nullptr;  // in the model that the engine keeps

 private:
  const std::unique_ptr<TouchedUnit> touched_;  // outlives shard

 public:
  const std::unique_ptr<ShardUnit> shard;
  const std::optional<DType> input_dtype;  // floating inputs are cast to it; unset: left alone

 private:
  void on_gradient(int parameter, const at::Tensor& gradient);
  void refuse_captured() const;

  std::optional<StreamSpan> span_;  // from opened to closed
  std::vector<std::shared_ptr<Call>> unhooked_;
  size_t marked_ = 0;

  // By parameter, null without hook; autograd holds them weakly.
  std::vector<torch_compat::NodePtr> accumulators_;
  std::string written_;  // FQN of a parameter whose change is lost
};

}  // namespace fsdp
