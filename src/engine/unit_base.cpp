// Implements UnitBase: the overrides of Module's virtual functions for a unit that an engine owns.
#include "fsdp/unit_base.h"

#include <fmt/format.h>

#include "engine/build_scope.h"
#include "engine/engine_parts.h"
#include "fsdp/error.h"

namespace fsdp {

UnitBase::~UnitBase() { BuildState::forget_if_building(*this); }

bool UnitBase::built(torch::nn::Module& module) {
  BuildState::shard_if_building(*this, module);
  return true;
}

void UnitBase::refuse_clone() {
  throw StateError({.what = "a sharded unit cannot be cloned",
                    .hint = "clone before constructing fsdp::Engine, or read whole values with "
                            "Engine::visit_full_parameters"});
}

void UnitBase::refuse_move() const {
  throw StateError({.what = "to() was called on a sharded model",
                    .where = unit_place(),
                    .hint = "set the dtype with Options::mixed_precision, or call to() before "
                            "constructing fsdp::Engine"});
}

std::string UnitBase::unit_place() const {
  const auto unit = engine_unit_.lock();
  return unit ? name_of_unit(unit->shard->fqn()) : std::string();
}

void UnitBase::refuse_recompute() const {
  throw InvalidArgument(
      {.what = "cannot recompute a forward that may write to its arguments, "
               "returns nothing, or has arguments that cannot be copied",
       .where = unit_place(),
       .hint = "let forward take its arguments by value or const reference and return its outputs, "
               "or set UnitOptions::recompute = false for this unit"});
}

void UnitBase::zero_gradients() {
  const auto unit = engine_unit_.lock();
  if (!unit) return;  // the engine's destruction has freed the gradients
  EngineParts& engine = unit->owner;
  // LibTorch's zero_grad leaves `.grad` undefined. The next forward restores the guards in `.grad`.
  const auto forget_grad = [](const EngineUnit& each) {
    for (const at::Tensor& parameter : each.shard->tensors()) parameter.mutable_grad().reset();
  };
  // zero_grad of the root is zero_grad of the model, so it clears all units.
  if (unit->index == 0) {
    engine.zero_grad();
    for (const auto& each : engine.model.units) forget_grad(*each);
    return;
  }
  engine.require_between_passes("zero_grad");
  const std::lock_guard lock(engine.scheduler->mutex);
  unit->shard->gradients().zero();
  forget_grad(*unit);
}

void UnitBase::require_whole(std::string_view done) const {
  if (!attached_) return;
  const auto unit = engine_unit_.lock();
  if (!unit) {
    throw StateError({.what = fmt::format("a model without its engine cannot be {}", done),
                      .cause = "the model's values were freed with its engine",
                      .hint = "save it while the engine is alive; load into a new model"});
  }
  if (unit->shard->parameters().state() == ParameterState::kUnsharded) return;
  throw StateError({.what = fmt::format("a sharded unit cannot be {}", done),
                    .where = name_of_unit(unit->shard->fqn()),
                    .hint = done == "saved"
                                ? "run on every rank: { fsdp::Gathered whole(engine); if "
                                  "(mesh.rank() == 0) torch::save(model, file); }"
                                : "run on every rank: { fsdp::Gathered whole(engine, "
                                  "fsdp::WriteBack::kFromRankZero); torch::load(model, file); }"});
}

}  // namespace fsdp
