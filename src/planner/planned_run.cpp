#include "planner/planned_run.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fsdp/trace.h>

#include "checkpoint/checkpoint_size.h"
#include "checkpoint/ema_object.h"
#include "checkpoint/engine_object.h"
#include "checkpoint/optimizer_object.h"
#include "checkpoint/staged_shard.h"
#include "checkpoint/value_objects.h"
#include "engine/engine_parts.h"
#include "engine/trace_file.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

std::string place_name(const PlannedPlace& place) {
  if (place.event.empty()) return "a plan";
  return fmt::format("a plan, after {} of {}", place.event, name_of_unit(place.unit));
}

// Runs `body`. LibTorch throws NotImplementedError if a plan cannot run an operator. The error is
// converted to an InvalidArgument that names the operator, the place and a remedy.
template <class Body>
auto explained(const PlannedPlace& place, const Body& body) {
  try {
    return body();
  } catch (const c10::NotImplementedError& error) {
    const std::string text = error.msg();
    throw InvalidArgument(
        {.what = text.substr(0, text.find('\n')),
         .where = error.context().empty() ? place_name(place) : error.context().front(),
         .cause = "a plan runs the model on tensors that have shapes but no values (meta)",
         .hint = "make shapes independent of the values of tensors, or leave this operator out of "
                 "the planned step"});
  }
}

std::unique_ptr<Optimizer> make_optimizer(Engine& engine, const PlannedOptimizer& planned) {
  const auto with = [&](auto options) {
    options.parameters = planned.parameters;
    options.skip_nonfinite = !engine.options().optimizer_in_backward;  // it cannot skip a step
    return options;
  };
  switch (planned.kind) {
    case OptimizerKind::kSgd:
      return std::make_unique<SGD>(engine, with(SgdOptions{}));
    case OptimizerKind::kSgdMomentum:
      return std::make_unique<SGD>(engine, with(SgdOptions{.momentum = 0.9}));
    case OptimizerKind::kLars:
      return std::make_unique<Lars>(engine, with(LarsOptions{}));
    case OptimizerKind::kAdamW:
      return std::make_unique<AdamW>(engine, with(AdamWOptions{}));
    case OptimizerKind::kLamb:
      return std::make_unique<Lamb>(engine, with(LambOptions{}));
    case OptimizerKind::kAdamW8bit:
      return std::make_unique<AdamW8bit>(engine, with(AdamW8bitOptions{}));
  }
  return nullptr;  // unreachable: every kind returns
}

std::vector<std::unique_ptr<Optimizer>> make_optimizers(Engine& engine,
                                                        const PlanRequest& request) {
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (const PlannedOptimizer& each : request.optimizers) {
    optimizers.push_back(make_optimizer(engine, each));
  }
  if (optimizers.empty()) {
    optimizers.push_back(make_optimizer(engine, {.kind = request.optimizer}));
  }
  return optimizers;
}

}  // namespace

// The order of the members matters. The mode and the meter must be active when the model is built.
// The model and the engine must be destroyed before the mode, the meter and the mesh.
PlannedRun::PlannedRun(const PlanRequest& request, const Build& build, OperatorWatch* watch)
    : request_(request),
      mesh_(request),
      mode_(request.mesh.device != DeviceKind::kCuda, watch != nullptr ? watch : mesh_.clock()),
      metered_(meter_),
      model_(built(build)),
      engine_(model_.root, mesh_.mesh(), request.options),
      optimizers_(make_optimizers(engine_, request)) {
  if (request.ema) ema_.emplace(engine_);
  engine_.observe_events([this](std::string_view event, std::string_view unit) {
    place_ = {std::string(event), std::string(unit)};
  });
  if (!request.checkpoints) return;
  const int64_t copies = request.checkpoints->state_copies();
  if (copies == 0) return;
  const std::vector<StatePart> parts = parts_of_checkpoint(*request.checkpoints);
  state_of(engine_).add_memory(MemoryCategory::kCheckpointStaging,
                               copies * staged_bytes(ShardContent(parts)));
}

// While user code runs, an access to the data of a tensor throws. Afterwards parameters and buffers
// are exempt from this guard, because the engine manages their storages.
PlannedRun::Model PlannedRun::built(const Build& build) const {
  const MetaMode::Guard guard;
  Model model = explained(place_, build);
  for (const at::Tensor& each : model.root->parameters()) torch_compat::allow_access(each);
  for (const at::Tensor& each : model.root->buffers()) torch_compat::allow_access(each);
  return model;
}

at::Tensor PlannedRun::forward() {
  const MetaMode::Guard guard;
  at::Tensor loss = explained(place_, [&] { return engine_.forward(model_.step); });
  if (loss.defined() && loss.requires_grad()) return loss;
  throw InvalidArgument({.what = "the step function returned no loss that requires grad",
                         .where = "a plan",
                         .hint = "return the loss itself, not detached"});
}

// The peak is reset before forward and before backward, so that each of them has its own peak.
StepPlan PlannedRun::step(StepRecorder* recorder) {
  StepPlan plan;
  plan.torch.rest = torch_now();
  const Traffic before = engine_.stats().sent;
  meter_->reset_peak();
  at::Tensor loss = forward();
  plan.torch.forward_peak = torch_peak();
  plan.torch.after_forward = torch_now();
  meter_->reset_peak();
  explained(place_, [&] { loss.backward(); });
  if (recorder != nullptr) recorder->end();
  plan.torch.backward_peak = torch_peak();
  loss = at::Tensor();  // its bytes are not part of the optimizer's step
  clip();
  update();
  plan.traffic = engine_.stats().sent - before;
  describe_engine(plan);
  return plan;
}

// LAMB and LARS send norms of parameters.
void PlannedRun::update() {
  for (const auto& each : optimizers_) each->step();
  engine_.zero_grad();  // also clears gradients of parameters that no optimizer has
  if (mesh_.clock() != nullptr) mesh_.clock()->end_step();
}

// The all_reduce of the norm is traffic. An update in backward does not clip.
void PlannedRun::clip() {
  if (request_.options.optimizer_in_backward) return;
  for (const auto& each : optimizers_) each->clip_grad_norm(1.0);
}

void PlannedRun::describe_engine(StepPlan& plan) {
  plan.memory = engine_.memory_plan();
  plan.ranks = engine_.mesh().world_size();
  plan.strategy = engine_.options().strategy;
  plan.units = static_cast<int>(state_of(engine_).model.units.size());
  for (const auto& unit : state_of(engine_).model.units) {
    plan.parameters += unit->shard->layout().parameter_numel();
  }
}

// Runs steps until two consecutive steps are equal. If no two steps are equal, the loop ends after
// kMostSteps.
StepPlan PlannedRun::steady_step() {
  StepPlan last = step();
  for (int i = 0; i < kMostSteps; ++i) {
    StepPlan next = step();
    const bool is_steady = next.memory.held_bytes == last.memory.held_bytes &&
                           next.traffic == last.traffic &&
                           next.torch.backward_peak == last.torch.backward_peak;
    last = std::move(next);
    if (is_steady) break;
  }
  for (const std::string& name : mode_.probed()) {
    last.notes.push_back(fmt::format("{} was run on zeros: LibTorch has no meta kernel", name));
  }
  if (StepClock* const clock = mesh_.clock()) {
    // A trace begins on idle streams, so another step precedes the timed one.
    std::optional<Trace> trace;
    if (!request_.trace_file.empty()) {
      ShardContext& context = *state_of(engine_).context;
      context.spans.follow(*context.streams.compute);
      trace.emplace(engine_);
      step();
    }
    // One more step, so that the timed step follows a step with the same order of units and with
    // full pools.
    StepRecorder recorder(state_of(engine_), *clock);
    step(&recorder);
    work_ = recorder.take();
    last.time = clock->last_step();
    if (trace) write_trace_of_rank(state_of(engine_), request_.trace_file);
  }
  return last;
}

// The parts are those for loading a checkpoint. Parts for saving have the values of buffers, which
// meta tensors lack.
std::vector<StatePart> PlannedRun::parts_of_checkpoint(const CheckpointOptions& options) {
  EngineParts& engine = state_of(engine_);
  const CheckpointManifest no_checkpoint;
  std::vector<StatePart> parts;
  EngineObject("model", engine).append_stored_parts(no_checkpoint, parts);
  if (!options.save_only_model) {
    for (const auto& each : optimizers_) {
      OptimizerObject optimizer("optimizer", *each);
      optimizer.prepare();
      optimizer.append_stored_parts(no_checkpoint, parts);
    }
    if (ema_) EmaObject("ema", *ema_).append_stored_parts(no_checkpoint, parts);
    RandomObject(engine).append_parts(parts);
    // The mesh of a plan has no GPU. A GPU's generator has a state of 16 bytes.
    if (request_.mesh.device == DeviceKind::kCuda) {
      StatePart gpu = parts.back();
      gpu.name = "random/cuda";
      gpu.shape.back() = gpu.granule = gpu.numel = 16;
      parts.push_back(std::move(gpu));
    }
  }
  return parts;
}

CheckpointSize PlannedRun::checkpoint_size(const CheckpointOptions& options) {
  return fsdp::checkpoint_size(parts_of_checkpoint(options), request_.ranks);
}

StepKey PlannedRun::key() { return {request_, state_of(engine_)}; }

SeenStep PlannedRun::seen(const StepPlan& plan) {
  return {.pass = state_of(engine_).pass.schedule().hint(),
          .torch = plan.torch,
          .notes = plan.notes,
          .work = work_,
          .rates = request_.rates};
}

// A timed step follows two others, as in steady_step.
StepPlan PlannedRun::replay(const SeenStep& seen) {
  EngineParts& engine = state_of(engine_);
  StepClock* const clock = mesh_.clock();
  engine.pass.schedule().expect(seen.pass);
  engine.memory.follow(engine.pass.schedule());
  StepPlan plan{.torch = seen.torch, .notes = seen.notes};
  for (int left = clock == nullptr ? 1 : 3; left > 0; --left) {
    const Traffic before = engine_.stats().sent;
    replay_pass(engine, seen, clock);
    clip();
    plan.traffic = engine_.stats().sent - before;
    if (clock != nullptr) update();
  }
  describe_engine(plan);
  if (clock != nullptr) plan.time = clock->last_step();
  return plan;
}

// Runs steps with the memory limit until an allocation exceeds it, as in a program that runs
// although its plan exceeds the limit (Options::try_beyond_plan). Returns the place that the error
// of this allocation names.
std::string place_beyond_limit(PlanRequest request, const PlannedRun::Build& build) {
  request.options.try_beyond_plan = true;
  request.rates.reset();
  request.trace_file.clear();
  try {
    PlannedRun run(request, build);
    run.step();
    run.step();                         // the second step starts with full pools
  } catch (const DeviceError& error) {  // an OutOfMemory, possibly with its place added
    return error.text().where;
  } catch (const InvalidArgument&) {  // the limit is the cause: the run was planned without it
    return "construction of the model and its optimizer";
  }
  return {};
}

}  // namespace fsdp
