#include "engine/engine_parts.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <utility>

#include "comm/mesh_state.h"
#include "engine/autograd_hooks.h"
#include "engine/memory_refusal.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// Returns the backward scheduler that all engines of the mesh share. One backward may run through
// several engines, and their collectives must have one common order.
std::shared_ptr<BackwardScheduler> scheduler_of(const Mesh& mesh) {
  return std::static_pointer_cast<BackwardScheduler>(state_of(mesh).shared_by_engines(
      [] { return std::make_shared<BackwardScheduler>(autograd_hooks::scheduler_queries()); }));
}

}  // namespace

EngineParts::EngineParts(std::shared_ptr<torch::nn::Module> root, Options options,
                         std::unique_ptr<ShardContext> engine_context)
    : context(std::move(engine_context)),
      scheduler(scheduler_of(context->mesh)),
      model{.root = std::move(root), .options = std::move(options), .units = {}} {}

EngineParts::~EngineParts() { shut_down(); }

void EngineParts::shut_down() noexcept {
  if (is_shut_down()) return;
  const std::lock_guard lock(scheduler->mutex);
  // After this call, a graph that outlives the engine cannot reach any of the engine's units.
  scheduler->leave(pass);
  // If one unit throws here, the other units must still be unbound. After this function, an access
  // to a parameter must throw and must not read freed memory.
  const auto quietly = [](const auto& act) {
    try {
      act();
    } catch (const std::exception&) {  // the device is lost, and its next use throws
    }
  };
  for (const auto& unit : model.units) {
    quietly([&] {
      unit->shard->gradients().drop();
      unit->shard->gradients().zero();
    });
    quietly([&] {
      if (unit->shard->parameters().state() != ParameterState::kSharded)
        unit->shard->parameters().reshard();
    });
    unit->shard->parameters().set_reason("cannot be read: the engine was destroyed",
                                         "keep fsdp::Engine alive as long as the model is used");
  }
  // GradientReports may outlive the engine. They read their values now, while the units' names
  // still exist.
  gradients.settle();
  context->streams.finish();  // an unused prefetch may still read main shards
  model.units.clear();
}

void EngineParts::require_between_passes(std::string_view call) const {
  if (is_shut_down()) {
    throw StateError({.what = fmt::format("{} is not allowed after the engine was destroyed", call),
                      .hint = "keep fsdp::Engine alive as long as its optimizers are used"});
  }
  // current_task() also detects a backward that has not reached a unit yet, for example in a hook.
  if (pass.schedule().active_calls() == 0 && autograd_hooks::current_task() < 0) {
    return follow_compute(call);
  }
  throw StateError(
      {.what = fmt::format("{} is not allowed inside a {}", call,
                           pass.schedule().active_calls() > 0 ? "forward" : "backward"),
       .cause = "gradients are complete only after the outermost backward",
       .hint = "call it outside of forward and backward, not from a hook"});
}

void EngineParts::follow_compute(std::string_view call) const {
  with_place([&] { return std::string(call); },
             [&] {
               context->memory.count_thread();
               context->streams.follow_compute();
             });
}

void EngineParts::zero_grad(const ChosenParameters& chosen) {
  require_between_passes("zero_grad");
  const std::lock_guard lock(scheduler->mutex);
  updates.forget_failure();
  for (const auto& unit : model.units) {
    if (!chosen.any_of(unit->index)) continue;
    with_place([&] { return unit->describe("zero_grad"); },
               [&] {
                 UnitGradients& gradients = unit->shard->gradients();
                 if (chosen.are_all()) return gradients.zero();
                 gradients.zero(chosen.of(unit->index));
               });
  }
}

void EngineParts::watch_shards() {
  // Only one attempt is made. If the trap cannot be armed, a later attempt in this process fails
  // too, and one warning is enough.
  if (std::exchange(tried_to_watch_, true)) return;
  try {
    touched_units::arm();
    context->watches_shards = true;
  } catch (const StateError& error) {
    context->mesh.warn({.what = "wrong use of Engine::parameters() cannot be detected",
                        .cause = error.text().cause,
                        .hint = "do not compute a norm or a sum of these parameters "
                                "(torch::nn::utils::clip_grad_norm_, LBFGS), and step only outside "
                                "of forward and backward"});
  }
}

void EngineParts::add_memory(MemoryCategory category, int64_t bytes) {
  const std::lock_guard lock(scheduler->mutex);
  memory.add(category, bytes);
  if (is_shut_down()) return;
  memory.remake(pass.schedule());
  if (bytes < 0 || model.options.try_beyond_plan) return;
  try {
    require_within_limit(*scheduler, context->memory.cap().limit);
  } catch (const InvalidArgument&) {
    // The bytes are subtracted here, because the caller may be a constructor, and if a constructor
    // throws, no destructor subtracts them.
    memory.add(category, -bytes);
    memory.remake(pass.schedule());
    throw;
  }
}

GradientMeasure::Measured EngineParts::measure_gradients(double norm_type, double max_norm,
                                                         const ChosenParameters& chosen) {
  updates.require_off("measuring or clipping gradients",
                      "the gradients of the whole model never exist at the same time");
  require_between_passes("measuring gradients");
  return with_place([] { return "gradient norm"; },
                    [&] {
                      const ContextSpan span =
                          context->streams.span(*context->streams.compute, "gradient norm", "");
                      const std::lock_guard lock(scheduler->mutex);
                      // zero_grad() of a module in a unit chosen by policy does not notify the
                      // engine, so the engine checks for it here.
                      model.follow_zero_grads();
                      return gradients.measure(norm_type, max_norm, chosen);
                    });
}

}  // namespace fsdp
