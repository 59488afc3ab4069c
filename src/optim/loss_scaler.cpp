#include "fsdp/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "comm/mesh_state.h"
#include "engine/engine_parts.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

void require(bool holds, const char* what, double value, const char* hint) {
  if (holds) return;
  throw InvalidArgument(
      {.what = fmt::format("{} is {}", what, value), .where = "fsdp::LossScaler", .hint = hint});
}

LossScalerOptions checked(const LossScalerOptions& options) {
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor",
          options.growth_factor, "use a number above 1 (default 2)");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
          options.backoff_factor, "use a number between 0 and 1 (default 0.5)");
  require(options.growth_interval > 0, "growth_interval",
          static_cast<double>(options.growth_interval),
          "use a number of steps above 0 (default 2000)");
  return options;
}

// Returns true if `scale` can scale a loss and unscale the gradients in fp32: `scale` and its
// inverse are finite and positive in fp32.
bool is_scale(double scale) {
  const auto narrow = static_cast<float>(scale);
  return std::isfinite(narrow) && narrow > 0 && std::isfinite(1.0F / narrow);
}

// Returns the objects that train with the engine.
// Errors: StateError if a backward updates the units, because it cannot skip a step.
std::shared_ptr<TrainingObjects> trained_with(Engine& engine) {
  EngineParts& parts = state_of(engine);
  parts.updates.require_off("fsdp::LossScaler",
                            "a LossScaler skips steps whose gradients overflow, but a backward has "
                            "updated units before it finds an overflow");
  return parts.training;
}

}  // namespace

LossScaler::LossScaler(Engine& engine, LossScalerOptions options)
    : options_(checked(options)),
      engine_(state_of(engine).weak_from_this()),
      place_(std::make_shared<const TrainingPlace>(trained_with(engine), TrainingKind::kLossScaler,
                                                   "LossScaler")) {
  load({.scale = options_.init_scale});
  // load() has set is_found_, because it assumes that a step has used the loaded scale. No step has
  // used the initial scale yet.
  is_found_ = false;
}

LossScaler::~LossScaler() {
  const std::shared_ptr<EngineParts> engine = engine_.lock();
  // From here on, captured gradients are no longer divided by a scale.
  if (!engine || engine->is_shut_down()) return;
  const std::lock_guard lock(engine->scheduler->mutex);
  engine->context->format.set_loss_scale(std::nullopt);
}

void LossScaler::load(const State& state) {
  require(is_scale(state.scale), "the scale", state.scale, "use a positive number (default 65536)");
  require(state.growth_tracker >= 0, "growth_tracker", static_cast<double>(state.growth_tracker),
          "pass the number of steps since the last overflow or growth");
  state_ = state;
  is_found_ = true;
  apply();
}

void LossScaler::apply() {
  const std::shared_ptr<EngineParts> engine = engine_.lock();
  if (!engine || engine->is_shut_down()) {
    throw StateError({.what = "the engine of the LossScaler was destroyed",
                      .where = "fsdp::LossScaler",
                      .hint = "destroy the LossScaler before the engine"});
  }
  // The capture of a gradient reads the scale under this mutex. All ranks must have the same scale,
  // but no collective sends it. So the next collective compares this annotation over the ranks.
  const std::lock_guard lock(engine->scheduler->mutex);
  engine->context->format.set_loss_scale(static_cast<float>(state_.scale));
  state_of(engine->context->mesh).order().note(fmt::format("loss scale {}", state_.scale));
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  // Computed in float32, because the scaled loss may exceed the range of float16.
  return loss.to(at::kFloat) * state_.scale;
}

void LossScaler::update(const StepReport& report) { update({report}); }

void LossScaler::update(std::initializer_list<StepReport> reports) {
  if (!std::ranges::all_of(reports, &StepReport::skips_nonfinite)) {
    throw InvalidArgument(
        {.what = "update got a StepReport of an optimizer with skip_nonfinite = false",
         .where = "LossScaler::update",
         .hint = "set skip_nonfinite = true in the optimizer's options"});
  }
  State next = state_;
  bool skipped = false;  // after a skipped step the other reports are read, too
  for (const StepReport& report : reports) skipped = report.skipped() || skipped;
  if (skipped) {
    next = {.scale = state_.scale * options_.backoff_factor};
  } else if (++next.growth_tracker == options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    next = {.scale = is_scale(grown) ? grown : state_.scale};
  }
  // If gradients overflow even at the smallest scale, the scale is not the cause. update() then
  // throws and leaves the state unchanged.
  require(is_scale(next.scale), "the scale after an overflow", next.scale,
          "see StepReport::gradients.first_nonfinite(): gradients are not finite at any scale");
  if (skipped && !is_found_) warn_of_search(next.scale);
  is_found_ = is_found_ || !skipped;
  state_ = next;
  apply();
}

void LossScaler::warn_of_search(double next) const {
  const std::shared_ptr<EngineParts> engine = engine_.lock();
  if (!engine || engine->is_shut_down() || engine->context->mesh.rank() != 0) return;
  engine->context->mesh.warn(
      {.what = fmt::format("a step was skipped, and the loss scale is lowered to {}", next),
       .where = "fsdp::LossScaler",
       .cause = fmt::format("gradients overflow at the scale {}", state_.scale),
       .hint = "expect a few skipped steps at the start of a run; to avoid them, load the "
               "LossScaler::state of an earlier run"});
}

}  // namespace fsdp
