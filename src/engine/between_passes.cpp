// EngineState between passes: what users change, what optimizers ask for, what is forgotten.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/autograd_hooks.h"
#include "engine/engine_state.h"
#include "engine/memory_refusal.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"
#include "runtime/device_error_place.h"

namespace fsdp {

// Parameters changed by an optimizer, a load or the user: seated ones are dropped, graphs that
// saved them will throw, resident copies are made anew.
void EngineState::absorb_changes(bool reseats) {
  bool issued = false;
  for (const auto& unit : units) issued = unit->shard->issue_digests() || issued;
  if (issued) context->main_stream().synchronize();  // of all units at once
  for (const auto& unit : units) unit->shard->absorb_changes(reseats);
}

void EngineState::require_between_passes(std::string_view call) const {
  if (is_shut_down()) {
    throw StateError({.what = fmt::format("{} after the engine was destroyed", call),
                      .where = {},
                      .cause = {},
                      .hint = "keep fsdp::Engine alive as long as its optimizers are used"});
  }
  if (pass->active_calls() == 0 && autograd_hooks::current_task() < 0) {
    return follow_compute(call);
  }
  throw StateError({.what = fmt::format("{} inside a {}", call,
                                        pass->active_calls() > 0 ? "forward" : "backward"),
                    .where = {},
                    .cause = "gradients are complete when the outermost backward has returned",
                    .hint = "call it between steps, not from a hook or a module's forward"});
}

void EngineState::follow_compute(std::string_view call) const {
  with_place([&] { return std::string(call); }, [&] { context->follow_compute(); });
}

void EngineState::require_not_gathered(std::string_view call) const {
  if (gathered == 0) return;
  throw StateError({.what = fmt::format("{} while parameters are gathered", call),
                    .where = {},
                    .cause = "what is written there would be lost, or overwrite it",
                    .hint = "end the scope of fsdp::Gathered first"});
}

void EngineState::zero_grad() {
  require_between_passes("zero_grad");
  const std::lock_guard lock(clock->mutex);
  for (const auto& unit : units) {
    with_place([&] { return unit->describe("zero_grad"); },
               [&] { unit->shard->gradients().zero(); });
  }
}

void EngineState::watch_shards() {
  if (std::exchange(tried_to_watch_, true)) return;
  try {
    touched_units::arm();
    context->watches_shards = true;
  } catch (const StateError& error) {
    context->mesh.warn(
        {.what = "what Engine::parameters() hands out is not watched",
         .where = {},
         .cause = error.text().cause,
         .hint = "do not reduce over it (torch::nn::utils::clip_grad_norm_, LBFGS), and step "
                 "between passes alone: nothing would tell"});
  }
}

void EngineState::warn_of_unscaled_float16() {
  if (std::exchange(looked_for_scaler_, true) || context->mesh.rank() != 0) return;
  const auto is_float16 = [](const auto& unit) {
    return std::ranges::any_of(unit->shard->layout().segments(), [](const SegmentLayout& segment) {
      return segment.trainable && segment.dtype == DType::kFloat16;
    });
  };
  if (context->has_loss_scale() || std::ranges::none_of(units, is_float16)) return;
  context->mesh.warn({.what = "training in float16 without a LossScaler",
                      .where = "param_dtype",
                      .cause = "small gradients round to zero, and nothing tells",
                      .hint = "make a fsdp::LossScaler and start backward from scale(loss); or "
                              "train in bfloat16"});
}

void EngineState::follow_zero_grads() {
  for (const auto& unit : units) {
    if (unit->is_by_policy()) unit->follow_zero_grad();
  }
}

bool EngineState::has_gradients() const {
  return std::ranges::any_of(units, [](const auto& unit) {
    const MainGradients& main = unit->shard->gradients().main();
    return main.are_ready() && !main.are_cleared();
  });
}

// What was frozen when the engine was built and is to be trained now. Every rank does the same, or
// the next reduction tells.
void EngineState::unfreeze() {
  bool any = false;
  for (const auto& unit : units) any = unit->unfreeze() || any;
  if (any) memory.remake(*pass);
}

void EngineState::look_for_strays(const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& leaves) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& input : inputs) known.insert(input.unsafeGetTensorImpl());
  for (ClockedEngine* engine : clock->engines()) {  // forwards of several may be nested
    for (const auto& unit : static_cast<EngineState*>(engine)->units) {
      for (const at::Tensor& each : unit->shard->tensors()) {
        known.insert(each.unsafeGetTensorImpl());
      }
    }
  }
  for (const auto& item : root->named_parameters()) {
    if (options.ignore && options.ignore(item.key()))
      known.insert(item.value().unsafeGetTensorImpl());
  }
  strays.collect(leaves, known);
}

void EngineState::refuse_strays() {
  const std::vector<StrayLeaves::Stray> found = strays.judge();
  if (found.empty()) return;
  std::string name = fmt::format("a tensor of shape {}", found[0].shape);
  for (const auto& item : root->named_parameters()) {
    if (item.value().unsafeGetTensorImpl() != found[0].tensor) continue;
    name = fmt::format("parameter '{}', registered after the engine was made", item.key());
  }
  throw StateError(
      {.what =
           fmt::format("{} requires a gradient and was used in the forward, but the engine does "
                       "not know it",
                       name),
       .where = found.size() > 1 ? fmt::format("the first of {}", found.size()) : std::string(),
       .cause = "it would be trained on each rank apart, or not at all",
       .hint =
           "register it (register_module, register_parameter) before the engine is constructed, "
           "or list it in Options::ignore; a tensor of the caller goes in as an argument of "
           "forward"});
}

// The pass's record begins anew: calls that outlive the pass (a graph that is kept) are in it no
// more.
void EngineState::forget_records() {
  for (const auto& unit : units) {
    for (Call* call : unit->calls) call->record = -1;
  }
}

// Forwards whose outputs were dropped without a backward: their graph is gone, so are their calls.
void EngineState::forget_dropped_forwards() {
  if (!pass->is_long()) return;
  std::vector<Call*> alive;
  for (const auto& unit : units) {
    for (Call* call : unit->calls) {
      if (call->record >= 0) alive.push_back(call);
    }
  }
  std::sort(alive.begin(), alive.end(),
            [](const Call* a, const Call* b) { return a->record < b->record; });
  std::vector<int> records;
  for (const Call* call : alive) records.push_back(call->record);
  pass->keep_only(records);
  for (size_t i = 0; i < alive.size(); ++i) alive[i]->record = static_cast<int>(i);
}

void EngineState::add_optimizer_state(int64_t bytes) {
  const std::lock_guard lock(clock->mutex);
  memory.add_optimizer_state(bytes);
  if (is_shut_down()) return;
  memory.remake(*pass);
  if (bytes < 0 || options.try_beyond_plan) return;
  try {
    require_within_limit(*clock, context->cap().limit);
  } catch (const InvalidArgument&) {  // there will be no optimizer to give them back
    memory.add_optimizer_state(-bytes);
    memory.remake(*pass);
    throw;
  }
}

GradientMeasure::Measured EngineState::measure_gradients(double norm_type, double max_norm) {
  require_between_passes("measuring gradients");
  return with_place([] { return "gradient norm"; },
                    [&] {
                      const ContextSpan span =
                          context->span(*context->compute, "gradient norm", "");
                      const std::lock_guard lock(clock->mutex);
                      follow_zero_grads();
                      return gradients.measure(norm_type, max_norm);
                    });
}

}  // namespace fsdp
