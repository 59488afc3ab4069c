#include "engine/unit_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "engine/engine_parts.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr const char* kOption = "Options::optimizer_in_backward";

}  // namespace

void UnitUpdates::require_off(std::string_view call, std::string_view why) const {
  if (!are_on()) return;
  throw StateError({.what = fmt::format("{} is not possible with optimizer_in_backward", call),
                    .where = kOption,
                    .cause = std::string(why),
                    .hint = fmt::format("remove {}, or set optimizer_in_backward = false", call)});
}

void UnitUpdates::require_whole(std::string_view call) const {
  if (!is_torn_) return;
  throw StateError({.what = fmt::format("{} is not allowed after a failed backward", call),
                    .where = kOption,
                    .cause = "the backward had updated some units before it threw, so the weights "
                             "are partly new",
                    .hint = "load a checkpoint, then call zero_grad; or call zero_grad to continue "
                            "with these weights"});
}

void UnitUpdates::begin_backward(bool inside_forward) {
  // Such a backward would change weights that the forward, or the graph that it makes, still reads.
  if (inside_forward) {
    require_off("a backward inside a forward", "the forward still reads the weights");
  }
  require_whole("a backward");
  training_.require_not_averaged("a backward that updates the weights");
  if (entries_.empty()) {
    throw StateError({.what = "a backward would lose its gradients: the engine has no optimizer",
                      .where = kOption,
                      .cause = "a backward updates each unit when its gradients are reduced, and "
                               "keeps no gradients",
                      .hint =
                          "construct an optimizer of fsdp/optim.h before the first backward, or "
                          "set optimizer_in_backward = false"});
  }
  const auto waiting = std::ranges::find_if(entries_, &Entry::awaits_step);
  if (waiting == entries_.end()) return;
  throw StateError(
      {.what = fmt::format("a second backward began before the step of {} ended", waiting->name),
       .where = kOption,
       .cause = "gradients of several backwards cannot be accumulated, because the "
                "first backward has already updated the weights",
       .hint = "call the optimizer's step after each backward that reaches its "
               "parameters, or set optimizer_in_backward = false"});
}

// [Note: order of an update] Work on the update's stream begins after the unit's reduction. This
// reduction is after all reads of the unit's parameters in this backward, on every rank: compute
// reads before it captures gradients (wait 5), and a reduction ends after all ranks have begun it.
// Only a gather whose result compute has not used can still read the main shard (wait 23 in
// update_stream).
void UnitUpdates::update(EngineUnit& unit) {
  const auto entry = std::ranges::find_if(entries_, [&](const Entry& each) {
    return std::ranges::find(each.units, unit.index) != each.units.end();
  });
  if (entry != entries_.end()) {
    Stream& stream = context_.main->update_stream();
    context_.hold.wait(stream);
    if (!std::exchange(entry->awaits_step, true)) entry->updater->begin_step();
    has_updated_ = true;
    const ContextSpan span = context_.streams.span(stream, "optimizer", unit.shard->fqn());
    entry->updater->update_unit(unit.index, stream);
  }
  unit.shard->gradients().end_update();
}

void UnitUpdates::abandon_backward() noexcept {
  if (!std::exchange(has_updated_, false)) return;
  is_torn_ = true;
  for (Entry& each : entries_) each.awaits_step = false;
  try {
    // The end of the backward, where compute would wait for the updates, is not reached.
    Event updated(context_.streams.device);
    context_.streams.reduce->record(updated);
    context_.streams.compute->wait(updated);  // wait 7
  } catch (const std::exception&) {           // the caller gets the error of the backward
  }
}

void UnitUpdates::refuse_use(const EngineUnit& unit) {
  throw StateError(
      {.what = "a backward used a unit again after it had updated the unit",
       .where = name_of_unit(unit.shard->fqn()),
       .cause = "the unit is in a recomputed function of another pass, or a hook ran its forward",
       .hint = "run each backward before the next forward, or set optimizer_in_backward = false"});
}

UpdaterPlace::UpdaterPlace(EngineParts& engine, UnitUpdater& updater, std::string name,
                           std::vector<int> units)
    : engine_(engine) {
  const std::lock_guard lock(engine.scheduler->mutex);
  auto& entries = engine.updates.entries_;
  for (const UnitUpdates::Entry& each : entries) {
    const auto shared = std::ranges::find_first_of(units, each.units);
    if (shared == units.end()) continue;
    throw StateError(
        {.what =
             fmt::format("{} would have two optimizers: {} and {}",
                         name_of_unit(engine.model.units[*shared]->shard->fqn()), each.name, name),
         .where = kOption,
         .cause = "a backward updates a whole unit at once",
         .hint = "make the modules of each optimizer separate units, or use one optimizer with "
                 "several ParameterGroups"});
  }
  entry_ = entries.insert(entries.end(), {&updater, std::move(name), std::move(units)});
}

UpdaterPlace::~UpdaterPlace() {
  const std::lock_guard lock(engine_.scheduler->mutex);
  engine_.updates.entries_.erase(entry_);
}

void UpdaterPlace::end_step() {
  const std::lock_guard lock(engine_.scheduler->mutex);
  engine_.updates.require_whole("an optimizer's step");
  entry_->awaits_step = false;
}

}  // namespace fsdp
