// UnitUpdates connects a backward with the optimizers that update units inside it
// (Options::optimizer_in_backward). The engine knows optimizers only as UnitUpdaters. The schedule
// decides when a unit is updated: [Note: last reduction] in update_times.h.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_unit.h"
#include "engine/training_objects.h"
#include "shard/shard_context.h"

namespace fsdp {

// An optimizer, as a backward sees it. The backward scheduler's mutex is held during all calls.
class UnitUpdater {
 public:
  virtual ~UnitUpdater() = default;
  // Called once per step, before the first update.
  virtual void begin_step() = 0;
  // Issues the update of a unit to `stream`. Work on this stream may read the unit's main
  // gradients, and write its main shards and optimizer state.
  virtual void update_unit(int unit, Stream& stream) = 0;
};

// The updaters of an engine, and the state of the step. Not thread-safe: the backward scheduler's
// mutex must be held.
class UnitUpdates {
 public:
  // Requires: all arguments outlive this object.
  UnitUpdates(ShardContext& context, const TrainingObjects& training)
      : context_(context), training_(training) {}

  bool are_on() const { return context_.updates_in_backward; }
  // Throws StateError if the option is on. `call` needs the gradients of the whole model, or of
  // several backwards, for the reason `why`.
  void require_off(std::string_view call, std::string_view why) const;

  // Checks that a backward may update units. Called before it captures gradients, if the option is
  // on.
  // Errors: StateError inside a forward, if there is no updater, if step() was not called after
  //   earlier updates, after a backward that failed between two updates, or if the weights are
  //   averages.
  void begin_backward(bool inside_forward);
  // Updates the unit with its updater, and frees its main gradients. If the unit has no updater,
  // only frees its main gradients.
  void update(EngineUnit& unit);
  void end_backward() { has_updated_ = false; }
  // Notes that the backward has failed. Compute waits for the updates that it has issued.
  void abandon_backward() noexcept;
  // Throws the StateError for a use of a unit in the backward that has updated it.
  [[noreturn]] static void refuse_use(const EngineUnit& unit);
  // Accepts weights that a failed backward has left partly updated.
  void forget_failure() { is_torn_ = false; }

 private:
  friend class UpdaterPlace;
  struct Entry {
    UnitUpdater* updater;
    std::string name;
    std::vector<int> units;
    bool awaits_step = false;  // units were updated, and step() was not called
  };
  void require_whole(std::string_view call) const;

  ShardContext& context_;
  const TrainingObjects& training_;
  std::list<Entry> entries_;
  bool has_updated_ = false;  // the backward under way has updated a unit
  bool is_torn_ = false;      // a backward failed after it had updated units
};

// The entry of an optimizer in UnitUpdates, from the optimizer's construction to its destruction.
class UpdaterPlace {
 public:
  // `units` are the units of which the optimizer trains parameters. `name` names the optimizer in
  // errors.
  // Errors: StateError if another optimizer trains parameters of one of the units.
  UpdaterPlace(EngineParts& engine, UnitUpdater& updater, std::string name, std::vector<int> units);
  ~UpdaterPlace();
  UpdaterPlace(const UpdaterPlace&) = delete;
  UpdaterPlace& operator=(const UpdaterPlace&) = delete;

  bool awaits_step() const { return entry_->awaits_step; }
  // Ends the step. Errors: StateError after a backward that failed between two updates.
  void end_step();

 private:
  EngineParts& engine_;
  std::list<UnitUpdates::Entry>::iterator entry_;
};

}  // namespace fsdp
