// Implements fsdp::Gathered and fsdp::GradSync.
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// Binds the unit's parameters to whole copies in memory that this rank owns.
void gather_whole(const EngineUnit& unit) {
  ShardUnit& shard = *unit.shard;
  shard.sync_changes(/*rebinds=*/true);
  // A unit that stayed gathered may be bound to memory of other ranks (mapped shards) or to the
  // main shard itself. It is therefore gathered again.
  if (shard.parameters().state() != ParameterState::kSharded) {
    unit.owner.pass.reshard(unit.index);
  }
  shard.parameters().unshard_own_copy();  // an own copy, because the caller may write to it
  shard.parameters().wait_for_unshard();
}

// Reshards the unit. If `write_back` is set, first writes changed parameters back to the main
// shards.
void give_back_whole(EngineUnit& unit, std::optional<WriteBack> write_back) {
  UnitParameters& parameters = unit.shard->parameters();
  if (write_back) {
    parameters.write_back(*write_back == WriteBack::kFromRankZero);
    // torch::load may have replaced the AccumulateGrad nodes of parameters, which removes the
    // hooks. So missing hooks are installed again.
    unit.capture_gradients();
  }
  if (parameters.state() != ParameterState::kSharded) unit.owner.pass.reshard(unit.index);
}

}  // namespace

Gathered::Gathered(Engine& engine, WriteBack write_back)
    : state_(state_of(engine)), write_back_(write_back) {
  for (const auto& unit : state_.model.units) units_.push_back(unit->index);
  bind();
}

Gathered::Gathered(Engine& engine, std::string_view unit_fqn, WriteBack write_back)
    : state_(state_of(engine)), write_back_(write_back), units_{state_.model.find_unit(unit_fqn)} {
  bind();
}

void Gathered::bind() {
  const std::lock_guard lock(state_.scheduler->mutex);
  if (state_.pass.schedule().active_calls() > 0 || state_.scheduler->in_backward()) {
    throw StateError({.what = "fsdp::Gathered cannot be constructed inside a forward or backward",
                      .hint = "construct it before the forward or after the backward; inside a "
                              "unit's own forward, read the unit's parameters directly"});
  }
  state_.pass.require_not_gathered("another fsdp::Gathered");
  state_.follow_compute("fsdp::Gathered");
  for (const int index : units_) {
    const EngineUnit& unit = *state_.model.units[index];
    with_place([&] { return unit.describe("fsdp::Gathered"); }, [&] { gather_whole(unit); });
  }
  // The engine counts the units as gathered only from here on, because if a gather above throws,
  // the destructor does not run and could not reset the number.
  state_.pass.set_gathered(static_cast<int>(units_.size()));
}

Gathered::~Gathered() noexcept(false) {
  const std::lock_guard lock(state_.scheduler->mutex);
  std::string lost;
  // The number of gathered units is reset first, so that the engine is usable again even if the
  // code below throws.
  state_.pass.set_gathered(0);
  // While an exception unwinds this rank, a collective could block the other ranks forever, so
  // nothing is written back.
  const bool unwinding = std::uncaught_exceptions() > 0;
  if (!unwinding) state_.follow_compute("fsdp::Gathered");
  for (const int index : units_) {
    EngineUnit& unit = *state_.model.units[index];
    // `lost` is set before the unit is resharded, because resharding drops the list of written
    // parameters.
    if (write_back_ == WriteBack::kNone && lost.empty())
      lost = unit.shard->parameters().first_written();
    const bool writes = write_back_ != WriteBack::kNone && !unwinding;
    try {
      with_place(
          [&] { return unit.describe("fsdp::Gathered"); },
          [&] { give_back_whole(unit, writes ? std::optional(write_back_) : std::nullopt); });
    } catch (const DeviceError&) {
      if (!unwinding) throw;
    }
  }
  if (lost.empty() || unwinding) return;
  throw StateError(
      {.what = fmt::format("parameter '{}' was modified while gathered for reading", lost),
       .hint = "pass fsdp::WriteBack::kOwnSlice or kFromRankZero to fsdp::Gathered"});
}

GradSync::GradSync(Engine& engine, GradientSync sync)
    : state_(state_of(engine)), previous_(state_.pass.schedule().sync()) {
  if (sync != GradientSync::kAll) {
    state_.updates.require_off("GradSync",
                               "gradients of several backwards cannot be accumulated, because each "
                               "backward updates the weights");
  }
  state_.pass.schedule().set_sync(sync);
}
GradSync::~GradSync() { state_.pass.schedule().set_sync(previous_); }

}  // namespace fsdp
