// One unit as the engine sees it: its bytes, its options, its calls and hooks.
#pragma once

#include <fsdp/options.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/module_walk.h"
#include "libtorch/torch_compat.h"
#include "plan/backward_scheduler.h"
#include "runtime/span_log.h"
#include "shard/precision.h"
#include "shard/shard_unit.h"

namespace fsdp {

class EngineParts;
class EngineUnit;

// The owner that the storages of a unit name: those of its shards, and those of its parameters if
// it is a unit by policy.
struct TouchedUnit final : touch_trap::Touched {
  EngineUnit* unit = nullptr;
  bool is_by_policy = false;
};

// Owned by ShardedModel; shared with the module's UnitBase and the hooks, all weakly, and by a call
// while it runs.
class EngineUnit : public ScheduledUnit, public std::enable_shared_from_this<EngineUnit> {
 public:
  struct Place {
    int index = 0;
    const EngineUnit* parent = nullptr;  // the unit around it; null for the root
    std::vector<NamedModule> modules;
    UnitOptions options;  // every field is set
    Precision precision;  // options.mixed_precision
  };
  // A gradient of one of the unit's parameters has been made; called in backward.
  using OnGradient =
      std::function<void(EngineUnit& unit, int parameter, const at::Tensor& gradient)>;

  // `touched`: the owner that `shard`'s storages name.
  EngineUnit(EngineParts& owner, ScheduledEngine& engine, OnGradient on_gradient, Place place,
             std::unique_ptr<TouchedUnit> touched, std::unique_ptr<ShardUnit> shard);

  // Arms the gradient hooks of parameters that require a gradient and have none: at the start, or
  // when torch::load has given a parameter a new node. Requires: the unit is owned by a shared_ptr.
  void capture_gradients();
  // Captures the gradient. Errors: StateError where the unit is closed.
  void take_gradient(int parameter, const at::Tensor& gradient);
  // Errors: StateError if autograd::grad asks for the gradient of a parameter.
  void refuse_captured() const;
  // Takes in parameters that were frozen and now require a gradient. Returns whether there were
  // any.
  bool unfreeze();
  // Looks whether a parameter was written where the change is lost; throw_if_written throws later,
  // when the unit's bytes are back in order.
  void note_written();
  void throw_if_written();
  void forget_written() { written_.clear(); }

  // Errors: StateError while autocast is on for the engine's device.
  void require_no_autocast(const at::Device& device) const;

  bool is_open() const { return state != State::kClosed; }
  bool is_by_policy() const { return touched_->is_by_policy; }
  bool has_several_layers() const { return place.modules.size() > 1; }
  // True for the unit itself, too.
  bool is_inside(const ScheduledUnit& other) const;

  // ---- units by policy ----

  // Keeps a call in whose forward an operator made no node that could be hooked, as inside a custom
  // Function: its backward is noticed when it reads, or hands over a gradient.
  void keep_unhooked(const std::shared_ptr<Call>& call);
  // A pass is over; or a forward that has left no graph, since the mark at its begin.
  void forget_unhooked() { unhooked_.clear(); }
  void mark_unhooked() { marked_ = unhooked_.size(); }
  void forget_unhooked_since_mark();
  // Fires the newest of them that node `sequence` of graph task `task` can belong to. Returns false
  // if there is none.
  bool fire_unhooked(BackwardScheduler& clock, int task, uint64_t sequence);
  // Zeroes gradients that module->zero_grad() has taken away.
  // Errors: StateError where some of the unit's are.
  void follow_zero_grad();

  // Errors: StateError where a step cannot take the unit's gradients: they wait to be reduced, or
  // to be summed over groups.
  void require_complete_gradients() const;

  // "reduce of unit 'layers.0'": for errors.
  std::string describe(std::string_view what) const;

  EngineParts& owner;
  const Place place;
  std::optional<StreamSpan> span;  // from open to close

 private:
  const OnGradient on_gradient_;
  const std::unique_ptr<TouchedUnit> touched_;  // outlives shard

 public:
  const std::unique_ptr<ShardUnit> shard;

 private:
  std::vector<std::shared_ptr<Call>> unhooked_;
  size_t marked_ = 0;

  // By parameter, null without hook; autograd holds them weakly.
  std::vector<torch_compat::NodePtr> accumulators_;
  std::string written_;  // FQN of a parameter whose change is lost
};

}  // namespace fsdp
