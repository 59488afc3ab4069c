// Attachment: turns a module tree into the units of an engine.
#pragma once

#include <vector>

#include "engine/build_scope.h"
#include "engine/module_walk.h"
#include "engine/unit_plan.h"

namespace fsdp {

class EngineParts;

// The construction of an engine's units. It runs once, right after the construction of EngineParts.
// It finds the model's units, checks that they can be sharded, plans them, checks that all ranks
// have the same plans, and shards the units.
class Attachment {
 public:
  // `building` is the scope that built the model; null for a model built without a scope.
  Attachment(EngineParts& engine, BuildState* building) : engine_(engine), building_(building) {}

  // Runs all steps. Collective.
  // Errors: InvalidArgument or StateError. After an error, the engine is unusable.
  void run();

 private:
  void find();
  void check() const;  // attach_checks.cpp
  void plan_units();
  void agree() const;
  void build();

  void require_root() const;
  void require_untaken() const;
  void take(int index);
  std::vector<Buffer> main_shards_of(const FoundUnit& found, const UnitCollectives& collectives,
                                     const ShardLayout& layout) const;
  void keep_limit() const;

  EngineParts& engine_;
  BuildState* const building_;
  std::vector<FoundUnit> found_;
  std::vector<UnitPlan> plans_;  // by unit
};

}  // namespace fsdp
