// Makes an optimizer of a planned kind, independently of the planner's own code.
#pragma once

#include <fsdp/optim.h>
#include <fsdp/plan.h>

#include <memory>

namespace fsdp::testing {

// Returns Lion for kSgdMomentum and RAdam for kAdamW, so that tests compare their state with that
// of SGD and AdamW, which the planner makes.
inline std::unique_ptr<Optimizer> optimizer_of(Engine& engine, const PlannedOptimizer& planned) {
  const auto with = [&](auto options) {
    options.parameters = planned.parameters;
    options.skip_nonfinite = !engine.options().optimizer_in_backward;
    return options;
  };
  switch (planned.kind) {
    case OptimizerKind::kSgd:
      return std::make_unique<SGD>(engine, with(SgdOptions{}));
    case OptimizerKind::kSgdMomentum:
      return std::make_unique<Lion>(engine, with(LionOptions{}));
    case OptimizerKind::kLars:
      return std::make_unique<Lars>(engine, with(LarsOptions{}));
    case OptimizerKind::kAdamW:
      return std::make_unique<RAdam>(engine, with(RAdamOptions{}));
    case OptimizerKind::kLamb:
      return std::make_unique<Lamb>(engine, with(LambOptions{}));
    case OptimizerKind::kAdamW8bit:
      return std::make_unique<AdamW8bit>(engine, with(AdamW8bitOptions{}));
  }
  return nullptr;  // unreachable: every kind returns
}

}  // namespace fsdp::testing
