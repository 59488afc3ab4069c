// EngineUnit: one unit of an engine, with its memory, options, calls and hooks.
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

// Connects storages with their unit, so that the touch trap finds the unit of an operator's input.
// The storages of a unit's shards refer to this object. If a policy chose the unit, the storages of
// its parameters do, too.
struct TouchedUnit final : touch_trap::Touched {
  EngineUnit* unit = nullptr;
  bool is_by_policy = false;
};

// A unit of an engine. ShardedModel owns it. The module's UnitBase and the hooks hold it weakly. A
// UnitCall shares the ownership while the call runs.
class EngineUnit : public ScheduledUnit, public std::enable_shared_from_this<EngineUnit> {
 public:
  struct Place {
    int index = 0;
    const EngineUnit* parent = nullptr;  // the unit around this unit; null for the root
    std::vector<NamedModule> modules;
    UnitOptions options;  // every field is set
    Precision precision;  // options.mixed_precision
  };
  // A function that backward calls with each gradient of the unit's parameters.
  using OnGradient =
      std::function<void(EngineUnit& unit, int parameter, const at::Tensor& gradient)>;

  // `touched` is the owner that is stored in the storages of `shard`.
  EngineUnit(EngineParts& owner, ScheduledEngine& engine, OnGradient on_gradient, Place place,
             std::unique_ptr<TouchedUnit> touched, std::unique_ptr<ShardUnit> shard);

  // Installs gradient hooks on parameters that require a gradient and have no hook. This is
  // necessary at the start, and after torch::load replaced the node of a parameter.
  // Requires: a shared_ptr owns the unit.
  void capture_gradients();
  // Captures the gradient of a parameter.
  // Errors: StateError if the unit is closed.
  void take_gradient(int parameter, const at::Tensor& gradient);
  // Throws StateError if autograd::grad requests the gradient of one of the unit's parameters.
  void refuse_captured() const;
  // Creates gradient state for parameters that were frozen and now require a gradient. Returns true
  // if there was such a parameter.
  bool unfreeze();
  // Records a parameter that was written inside a forward or backward, because resharding loses the
  // change. throw_if_written throws the error later, when the unit's state is consistent again.
  void note_written();
  void throw_if_written();
  void forget_written() { written_.clear(); }

  // Throws StateError if autocast is on for the engine's device.
  void require_no_autocast(const at::Device& device) const;

  bool is_open() const { return state != State::kClosed; }
  bool is_by_policy() const { return touched_->is_by_policy; }
  bool has_several_layers() const { return place.modules.size() > 1; }
  // Returns true if the unit is `other` or is inside `other`.
  bool is_inside(const ScheduledUnit& other) const;

  // ---- units chosen by policy ----

  // Keeps a call whose forward ran an operator that made no node to hook, for example inside a
  // custom Function. The engine notices the backward of such a call only when that backward reads a
  // parameter or produces a gradient.
  void keep_unhooked(const std::shared_ptr<Call>& call);
  // Drop unhooked calls. forget_unhooked drops all of them, at the end of a pass. A forward calls
  // mark_unhooked at its begin; if it made no graph, forget_unhooked_since_mark drops its calls.
  void forget_unhooked() { unhooked_.clear(); }
  void mark_unhooked() { marked_ = unhooked_.size(); }
  void forget_unhooked_since_mark();
  // Runs the pre_backward of an unhooked call: of those to which node `sequence` of graph task
  // `task` can belong, the one that began last. Returns false if there is no such call.
  bool fire_unhooked(BackwardScheduler& scheduler, int task, uint64_t sequence);
  // Zeroes the unit's gradients if module->zero_grad() has removed `.grad` of its parameters.
  // Errors: StateError if `.grad` of only some of them was removed.
  void follow_zero_grad();

  // Throws StateError if the unit's gradients are not reduced yet, or not summed over groups yet. A
  // step cannot use such gradients.
  void require_complete_gradients() const;

  // Returns "reduce of unit 'layers.0'", for use in errors.
  std::string describe(std::string_view what) const;

  EngineParts& owner;
  const Place place;
  std::optional<StreamSpan> span;  // the unit's backward in a trace, from open to close

 private:
  const OnGradient on_gradient_;
  const std::unique_ptr<TouchedUnit> touched_;  // outlives shard, whose storages point to it

 public:
  const std::unique_ptr<ShardUnit> shard;

 private:
  std::vector<std::shared_ptr<Call>> unhooked_;
  size_t marked_ = 0;

  // The node of each parameter's hook; null for a parameter without a hook. Autograd itself holds
  // the nodes weakly.
  std::vector<torch_compat::NodePtr> accumulators_;
  std::string written_;  // FQN of a parameter whose change is lost; empty: none
};

}  // namespace fsdp
