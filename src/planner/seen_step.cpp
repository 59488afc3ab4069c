#include "planner/seen_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <limits>
#include <utility>

namespace fsdp {
namespace {

constexpr size_t kAfterPass = std::numeric_limits<size_t>::max();

void play_event(EnginePass& pass, const PassEvent& event) {
  Pass& schedule = pass.schedule();
  switch (event.boundary) {
    case Boundary::kPreForward:
      if (event.call < 0) return schedule.pre_recompute(event.unit);
      if (schedule.active_calls() == 0) pass.begin_forward();
      schedule.pre_forward(event.unit);
      return;
    case Boundary::kPostForward:
      if (event.call < 0) return schedule.post_recompute(event.unit);
      schedule.post_forward(event.unit, event.call, event.flag);
      if (schedule.active_calls() == 0) pass.end_forward(event.flag);
      return;
    case Boundary::kBeginBackward:
      return;  // open() begins the backward
    case Boundary::kPreBackward:
      return pass.open(event.unit, event.flag);
    case Boundary::kIdle:
      return pass.idle(event.unit);
    case Boundary::kClose:
      return pass.close(event.unit, event.flag);
    case Boundary::kEndBackward:
      return pass.finalize_backward();
  }
}

void capture(EnginePass& pass, const SeenGradient& seen) {
  const at::NoGradGuard no_grad;  // as in the hooks of autograd
  const at::Tensor gradient =
      at::empty_strided(seen.sizes, seen.strides, at::TensorOptions(seen.dtype).device(at::kMeta));
  const at::Tensor other = seen.is_sole ? at::Tensor() : gradient;
  pass.unit_at(seen.unit).shard->gradients().capture(seen.parameter, gradient);
}

}  // namespace

StepRecorder::StepRecorder(EngineParts& engine, StepClock& clock) : engine_(engine), clock_(clock) {
  clock_.observe([this](SeenOperator op) { add(std::move(op)); });
  engine_.pass.observe_gradients(
      [this](int unit, int parameter, const at::Tensor& gradient, bool is_sole) {
        if (!gradient.defined() || gradient.layout() != at::kStrided) return;
        add(SeenGradient{.unit = unit,
                         .parameter = parameter,
                         .sizes = gradient.sizes().vec(),
                         .strides = gradient.strides().vec(),
                         .dtype = gradient.scalar_type(),
                         .is_sole = is_sole});
      });
}

void StepRecorder::end() {
  clock_.observe({});
  engine_.pass.observe_gradients({});
}

// The engine drops the record of a pass at its end. It also drops events of a forward without a
// graph. In this case the events do not show the position of the work around them.
void StepRecorder::add(std::variant<SeenOperator, SeenGradient> work) {
  const size_t last = work_.empty() ? 0 : work_.back().event;
  const size_t recorded = engine_.pass.schedule().recorded_events();
  const size_t event = recorded == 0 && last > 0 ? kAfterPass : recorded;
  is_ordered_ = is_ordered_ && event >= last;
  work_.push_back({event, std::move(work)});
}

std::optional<std::vector<SeenWork>> StepRecorder::take() {
  if (!is_ordered_) return std::nullopt;
  return std::move(work_);
}

// Operators that the engine itself runs are part of the recorded work, so the clock does not watch
// those of the replay.
void replay_pass(EngineParts& engine, const SeenStep& seen, StepClock* clock) {
  // In a real pass the hooks of autograd hold the same lock while they call the engine.
  const std::lock_guard lock(engine.scheduler->mutex);
  if (clock != nullptr) clock->set_watching(false);
  size_t next = 0;
  const auto work_before = [&](size_t event) {
    if (clock == nullptr) return;
    for (; next < seen.work->size() && (*seen.work)[next].event <= event; ++next) {
      const SeenWork& each = (*seen.work)[next];
      if (const auto* op = std::get_if<SeenOperator>(&each.work)) {
        clock->run(*op);
      } else {
        capture(engine.pass, std::get<SeenGradient>(each.work));
      }
    }
  };
  const std::vector<PassEvent>& events = seen.pass.events();
  for (size_t i = 0; i < events.size(); ++i) {
    work_before(i);
    play_event(engine.pass, events[i]);
  }
  work_before(kAfterPass);
  if (clock != nullptr) clock->set_watching(true);
}

}  // namespace fsdp
