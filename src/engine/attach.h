// Attachment: the way from a module tree to the units of an engine.
#pragma once

#include <vector>

#include "engine/build_scope.h"
#include "engine/module_walk.h"
#include "engine/unit_plan.h"

namespace fsdp {

class EngineParts;

// A one-time job, run right after the construction of EngineParts. It finds the model's units,
// checks that they can be sharded, plans them, agrees with the other ranks and shards them.
class Attachment {
 public:
  // `building`: the scope that built the model; null for a plainly built one.
  Attachment(EngineParts& engine, BuildState* building) : engine_(engine), building_(building) {}

  // Runs all steps. Collective. Errors: InvalidArgument, StateError; the engine is unusable then.
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
