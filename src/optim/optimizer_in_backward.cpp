// Optimizer::State with Options::optimizer_in_backward: the engine's backward issues the updates,
// and step() ends the step.
#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "fsdp/error.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

void require_possible(bool is_possible, const std::string& what, const char* cause,
                      const char* hint) {
  if (is_possible) return;
  throw InvalidArgument(
      {.what = what, .where = "Options::optimizer_in_backward", .cause = cause, .hint = hint});
}

}  // namespace

std::unique_ptr<UpdaterPlace> Optimizer::State::place_in_backward(const Settings& settings) {
  if (!engine.updates.are_on()) return nullptr;
  require_possible(
      !settings.adapts, fmt::format("{} cannot update units in a backward", name),
      "its trust ratios need the norms of all parameters at once",
      "use AdamW, AdamW8bit, SGD, RAdam or Lion, or set optimizer_in_backward = false");
  require_possible(!settings.skip_nonfinite, fmt::format("{} has skip_nonfinite = true", name),
                   "a backward has already updated units when it finds a gradient that is not "
                   "finite, so it cannot skip the whole step",
                   "set skip_nonfinite = false in the optimizer's options, or set "
                   "optimizer_in_backward = false");
  std::vector<int> units;
  for (const auto& unit : engine.model.units) {
    if (chosen_.any_of(unit->index)) units.push_back(unit->index);
  }
  return std::make_unique<UpdaterPlace>(engine, *this, described_, std::move(units));
}

void Optimizer::State::begin_step() {
  segments_.follow_trained();
  note_step();
}

void Optimizer::State::update_unit(int unit, Stream& stream) {
  StepUpdates updates;
  add_updates(unit, updates);
  if (!updates.units.empty()) issue(stream, updates, {});
}

StepReport Optimizer::State::end_step() {
  in_backward_->end_step();
  used_additions_ = additions();
  warn_of_untrained();
  const std::lock_guard lock(engine.scheduler->mutex);
  kernels::count_steps(engine.context->main->stream(), {{segments_.applied()}}, betas(), nullptr);
  engine.steps.end(*engine.context->streams.compute);
  return {.gradients = {}, .skips_nonfinite = false};
}

}  // namespace fsdp
