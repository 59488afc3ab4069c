// EngineUnit: one unit as the engine sees it, with its bytes, options, calls and hooks.
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

// The owner that a unit's storages name: the storages of its shards and, if it is a unit by policy,
// those of its parameters.
struct TouchedUnit final : touch_trap::Touched {
  EngineUnit* unit = nullptr;
  bool is_by_policy = false;
};

// A unit of an engine. ShardedModel owns it; the module's UnitBase and the hooks hold it weakly; a
// UnitCall shares it while it runs.
class EngineUnit : public ScheduledUnit, public std::enable_shared_from_this<EngineUnit> {
 public:
  struct Place {
    int index = 0;
    const EngineUnit* parent = nullptr;  // the unit around it; null for the root
    std::vector<NamedModule> modules;
    UnitOptions options;  // every field is set
    Precision precision;  // options.mixed_precision
  };
  // Called in backward with each gradient of one of the unit's parameters.
  using OnGradient =
      std::function<void(EngineUnit& unit, int parameter, const at::Tensor& gradient)>;

  // `touched`: the owner that `shard`'s storages name.
  EngineUnit(EngineParts& owner, ScheduledEngine& engine, OnGradient on_gradient, Place place,
             std::unique_ptr<TouchedUnit> touched, std::unique_ptr<ShardUnit> shard);

  // Installs gradient hooks on parameters that require a gradient and have none: at the start, or
  // after torch::load gave a parameter a new node.
  // Requires: the unit is owned by a shared_ptr.
  void capture_gradients();
  // Captures the gradient. Errors: StateError if the unit is closed.
  void take_gradient(int parameter, const at::Tensor& gradient);
  // Throws StateError if autograd::grad asks for the gradient of a parameter.
  void refuse_captured() const;
  // Gives gradients to parameters that were frozen and now require one. Returns whether there were
  // any.
  bool unfreeze();
  // Notes whether a parameter was written where the change is lost. throw_if_written reports it
  // later, when the unit's bytes are in order again.
  void note_written();
  void throw_if_written();
  void forget_written() { written_.clear(); }

  // Throws StateError while autocast is on for the engine's device.
  void require_no_autocast(const at::Device& device) const;

  bool is_open() const { return state != State::kClosed; }
  bool is_by_policy() const { return touched_->is_by_policy; }
  bool has_several_layers() const { return place.modules.size() > 1; }
  // Returns whether the unit is inside `other`; true for the unit itself.
  bool is_inside(const ScheduledUnit& other) const;

  // ---- units by policy ----

  // Keeps a call whose forward ran an operator without a node that could be hooked, as in a custom
  // Function. Its backward is noticed when it reads a parameter or delivers a gradient.
  void keep_unhooked(const std::shared_ptr<Call>& call);
  // Drop such calls: all at the end of a pass, or those since the mark, which the begin of a
  // forward sets, if the forward left no graph.
  void forget_unhooked() { unhooked_.clear(); }
  void mark_unhooked() { marked_ = unhooked_.size(); }
  void forget_unhooked_since_mark();
  // Fires the newest such call to which node `sequence` of graph task `task` can belong. Returns
  // false if there is none.
  bool fire_unhooked(BackwardScheduler& clock, int task, uint64_t sequence);
  // Zeroes the unit's gradients if module->zero_grad() has removed its parameters' `.grad`.
  // Errors: StateError if it has removed some of them only.
  void follow_zero_grad();

  // Throws StateError if a step cannot use the unit's gradients: they are not reduced yet, or not
  // summed over groups.
  void require_complete_gradients() const;

  // Returns "reduce of unit 'layers.0'", for errors.
  std::string describe(std::string_view what) const;

  EngineParts& owner;
  const Place place;
  std::optional<StreamSpan> span;  // from open to close

 private:
  const OnGradient on_gradient_;
  const std::unique_ptr<TouchedUnit> touched_;  // outlives shard, whose storages name it

 public:
  const std::unique_ptr<ShardUnit> shard;

 private:
  std::vector<std::shared_ptr<Call>> unhooked_;
  size_t marked_ = 0;

  // By parameter, null without a hook. Autograd holds the nodes weakly.
  std::vector<torch_compat::NodePtr> accumulators_;
  std::string written_;  // FQN of a parameter whose change is lost
};

}  // namespace fsdp
