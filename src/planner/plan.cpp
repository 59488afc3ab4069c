// A plan is a run: the engine, the optimizer and the user's code for rank 0, on a device without
// memory.
#include "fsdp/plan.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <optional>

#include "engine/engine_state.h"
#include "fsdp/optim.h"
#include "planner/meta_mode.h"
#include "planner/planned_mesh.h"
#include "shard/torch_compat.h"
#include "shard/torch_memory.h"

namespace fsdp {
namespace {

// What the engine was last told about, for errors.
struct Place {
  std::string event, unit;
};

std::string place_name(const Place& place) {
  if (place.event.empty()) return "a plan";
  return fmt::format("a plan, after {} of {}", place.event, name_of_unit(place.unit));
}

// Operators that a plan cannot run say so by LibTorch's exception for what is not implemented.
template <class Body>
auto explained(const Place& place, const Body& body) {
  try {
    return body();
  } catch (const c10::NotImplementedError& error) {
    const std::string text = error.msg();
    throw InvalidArgument(
        {.what = text.substr(0, text.find('\n')),
         .where = error.context().empty() ? place_name(place) : error.context().front(),
         .cause = "a plan runs the model on tensors that have shapes and no values (meta)",
         .hint = "let shapes not depend on values where the model is planned, or leave this part "
                 "out of the planned step"});
  }
}

std::unique_ptr<Optimizer> make_optimizer(Engine& engine, int moments) {
  switch (moments) {
    case 0:
      return std::make_unique<SGD>(engine, SgdOptions{});
    case 1:
      return std::make_unique<SGD>(engine, SgdOptions{.momentum = 0.9});
    case 2:
      return std::make_unique<AdamW>(engine, AdamWOptions{});
    default:
      throw InvalidArgument({.what = fmt::format("optimizer_moments is {}", moments),
                             .where = "PlanRequest",
                             .hint = "2 (AdamW), 1 (SGD with momentum) or 0 (SGD)"});
  }
}

// A plan says what a step takes, whatever it may take.
Options without_limit(Options options) {
  options.memory_limit = 0;
  return options;
}

class PlannedRun {
 public:
  PlannedRun(const PlanRequest& request, const std::function<plan_detail::PlannedModel()>& build)
      : mesh_(request),
        mode_(request.mesh.device != DeviceKind::kCuda),
        metered_(meter_),
        model_(built(build)),
        engine_(model_.root, mesh_.mesh(), without_limit(request.options)),
        optimizer_(make_optimizer(engine_, request.optimizer_moments)) {
    engine_.observe_events([this](std::string_view event, std::string_view unit) {
      place_ = {std::string(event), std::string(unit)};
    });
  }

  // Until nothing is learned any more: the first step shows the order of units, and one more what
  // the engine takes beyond it.
  StepPlan steady_step() {
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
    return last;
  }

 private:
  static constexpr int kMostSteps = 4;

  plan_detail::PlannedModel built(const std::function<plan_detail::PlannedModel()>& build) const {
    const MetaMode::Guard guard;
    plan_detail::PlannedModel model = explained(place_, build);
    for (const at::Tensor& each : model.root->parameters()) torch_compat::allow_access(each);
    for (const at::Tensor& each : model.root->buffers()) torch_compat::allow_access(each);
    return model;
  }
  at::Tensor forward() const {
    const MetaMode::Guard guard;
    return explained(place_, model_.step);
  }

  int64_t torch_now() const { return meter_->reading().now.torch; }
  int64_t torch_peak() const { return meter_->reading().peaks.torch; }

  StepPlan step() {
    StepPlan plan;
    plan.torch.rest = torch_now();
    const Traffic before = sent();
    meter_->reset_peak();
    at::Tensor loss = forward();
    if (!loss.defined() || !loss.requires_grad()) {
      throw InvalidArgument({.what = "the planned step returned no loss with a gradient",
                             .where = "a plan",
                             .hint = "let it return the tensor of which backward is called"});
    }
    plan.torch.forward_peak = torch_peak();
    plan.torch.after_forward = torch_now();
    meter_->reset_peak();
    explained(place_, [&] { loss.backward(); });
    plan.torch.backward_peak = torch_peak();
    loss = at::Tensor();
    optimizer_->clip_grad_norm(1.0);
    optimizer_->step();
    optimizer_->zero_grad();
    plan.traffic = sent() - before;
    plan.memory = engine_.memory_plan();
    plan.units = static_cast<int>(engine_.state().units.size());
    for (const auto& unit : engine_.state().units) {
      plan.parameters += unit->shard->layout().parameter_numel();
    }
    return plan;
  }

  Traffic sent() const {
    Traffic sent = engine_.stats().sent;
    sent.other_bytes += mesh_.sent_by_modules();
    return sent;
  }

  const std::shared_ptr<MemoryMeter> meter_ = std::make_shared<MemoryMeter>();
  Place place_;
  PlannedMesh mesh_;
  MetaMode mode_;
  torch_memory::MeterScope metered_;
  plan_detail::PlannedModel model_;
  Engine engine_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

StepPlan plan_detail::plan(const PlanRequest& request, const std::function<PlannedModel()>& build) {
  return PlannedRun(request, build).steady_step();
}

}  // namespace fsdp
