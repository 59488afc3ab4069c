#include "plan/backward_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {

Call::Call(std::weak_ptr<ScheduledUnit> owner, BackwardScheduler& owner_scheduler)
    : unit(std::move(owner)),
      of(unit.lock().get()),
      scheduler(owner_scheduler.weak_from_this()),
      ordinal(owner_scheduler.next_ordinal()) {
  unit.lock()->calls.push_back(this);
}

// The graph that owns the call may outlive the engine and the scheduler, and any thread may free
// it.
Call::~Call() {
  const auto still_there = scheduler.lock();
  if (!still_there) return;
  const std::lock_guard lock(still_there->mutex);
  if (const auto owner = unit.lock()) std::erase(owner->calls, this);
}

bool Call::will_run() const {
  const auto owner = scheduler.lock();
  return owner && std::any_of(output_nodes.begin(), output_nodes.end(), owner->queries().will_run);
}

// Returns the unit of the innermost forward under way, even if a backward runs inside this forward.
// If no forward is under way, returns the unit that backward opened last.
BackwardScheduler::Running BackwardScheduler::running() const {
  if (!calls_.empty()) {
    const Call& call = *calls_.back();
    return {call.unit.lock().get(), call.forward_task < 0 ? Phase::kForward : Phase::kRecompute};
  }
  return {open_.empty() ? nullptr : open_.back(), Phase::kBackward};
}

void BackwardScheduler::leave(ScheduledEngine& engine) {
  std::erase(engines_, &engine);
  std::erase_if(open_, [&](const ScheduledUnit* unit) { return unit->engine == &engine; });
  // Tasks of a failed backward may remain in tasks_. After the last engine has left, no other code
  // removes them.
  if (engines_.empty()) tasks_.clear();
}

void BackwardScheduler::push_call(std::shared_ptr<Call> call) {
  if (calls_.empty()) forward_thread_ = std::this_thread::get_id();
  calls_.push_back(std::move(call));
}

std::shared_ptr<Call> BackwardScheduler::innermost_call_but(const WhichCalls& these) const {
  const auto found =
      std::find_if(calls_.rbegin(), calls_.rend(), [&](const auto& call) { return !these(*call); });
  return found == calls_.rend() ? nullptr : *found;
}

void BackwardScheduler::end_open_ended(bool failed, const WhichCalls& stays) {
  for (size_t i = calls_.size(); i > 0 && calls_[i - 1]->is_open_ended; --i) {
    // The pointer is copied, because calls_ may hold the only reference to a call without a graph.
    const std::shared_ptr<Call> call = calls_[i - 1];
    if (stays && stays(*call)) continue;
    calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
    if (const auto unit = call->unit.lock()) {
      unit->engine->end_forward(unit->index, *call, failed);
    }
  }
}

// A unit that is recomputed may have running calls in several tasks at once. The result is the call
// whose forward runs in `task`.
std::shared_ptr<Call> BackwardScheduler::running_call(const ScheduledUnit& unit, int task) const {
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    if ((*call)->forward_task == task && (*call)->of == &unit) return *call;
  }
  return nullptr;
}

void BackwardScheduler::note_boundary(uint64_t sequence) {
  boundary_ = sequence;
  boundary_thread_ = std::this_thread::get_id();
}

std::optional<uint64_t> BackwardScheduler::boundary() const {
  if (boundary_thread_ != std::this_thread::get_id()) return std::nullopt;
  return boundary_;
}

void BackwardScheduler::check_thread() const {
  if (calls_.empty() || forward_thread_ == std::this_thread::get_id()) return;
  throw StateError(
      {.what = "a unit's forward runs on another thread than the forward that contains it",
       .hint = "call all units of one forward from one thread"});
}

bool BackwardScheduler::is_running(const Call& call) const {
  return std::ranges::any_of(calls_, [&](const auto& each) { return each.get() == &call; });
}

bool BackwardScheduler::is_enclosing(int task) const {
  return std::find(tasks_.begin(), tasks_.end(), task) != tasks_.end();
}

// A task that is not on the stack yet counts as inside the last task of the stack, because enter()
// would push it on top of that task.
bool BackwardScheduler::runs_in(int task, int enclosing) const {
  const auto found = std::find(tasks_.begin(), tasks_.end(), task);
  return enclosing == (found == tasks_.begin() ? -1 : *(found - 1));
}

void BackwardScheduler::enter(int task) {
  if (!tasks_.empty() && tasks_.back() == task) return;
  if (is_enclosing(task)) return;
  if (tasks_.empty()) {
    // Only the outermost task is queried, because the inner backward of a recomputation never has
    // inputs, even under autograd::grad.
    inputs_given_ = queries_.inputs_given();
    backward_thread_ = std::this_thread::get_id();
  } else if (backward_thread_ != std::this_thread::get_id()) {
    throw StateError({.what = "two threads run backward through sharded units at once",
                      .cause = "the order of collectives would depend on which thread is faster",
                      .hint = "run one backward after the other"});
  }
  tasks_.push_back(task);
  // Autograd runs the callback at the end of the task. If the task fails, autograd destroys the
  // callback without calling it. Then the sentinel's destructor abandons the task.
  struct Sentinel {
    std::weak_ptr<BackwardScheduler> scheduler;
    int task;
    bool ran = false;
    ~Sentinel() {
      const auto owner = scheduler.lock();
      if (ran || !owner) return;
      const std::lock_guard lock(owner->mutex);
      owner->abandon_task(task);
    }
  };
  auto sentinel = std::make_shared<Sentinel>(weak_from_this(), task);
  queries_.at_end_of_task([sentinel] {
    const auto owner = sentinel->scheduler.lock();
    if (!owner) return;
    const std::lock_guard lock(owner->mutex);
    owner->end_task(sentinel->task);
    sentinel->ran = true;
  });
}

void BackwardScheduler::tick(int task, uint64_t sequence) {
  std::vector<Closing> finished;
  for (ScheduledUnit* unit : open_) {
    bool fired = false, over = true, more = false;
    uint64_t oldest = std::numeric_limits<uint64_t>::max();
    for (const Call* call : unit->calls) {
      if (call->fired_task == task) {
        fired = true;
        over = over && call->begin > sequence;
        oldest = std::min(oldest, call->ordinal);
      } else if (is_enclosing(call->fired_task)) {
        // The sequence number of a node in this task does not show which nodes of an enclosing task
        // have run, so the call does not count as over.
        over = false;
      } else if (!more && call->will_run()) {
        more = true;
      }
    }
    // A unit whose calls fired only in an enclosing task is not closed in this task.
    if (!fired || !over) continue;
    if (more) {
      unit->state = ScheduledUnit::State::kIdle;
    } else {
      finished.push_back({oldest, unit});
    }
  }
  close(std::move(finished));
}

void BackwardScheduler::rest_idle(const ScheduledUnit* except) {
  // A unit may be idle while it is recomputed. It is not resharded then, because its forward still
  // reads its parameters.
  const auto runs_forward = [&](const ScheduledUnit* unit) {
    return std::any_of(calls_.begin(), calls_.end(),
                       [&](const auto& call) { return call->unit.lock().get() == unit; });
  };
  for (ScheduledUnit* unit : open_) {
    if (unit->state != ScheduledUnit::State::kIdle || unit == except || runs_forward(unit))
      continue;
    unit->engine->idle(unit->index);
    // The unit's gradients are still open, so its state is not kClosed. At the next call of tick()
    // at which its fired calls are over, it becomes idle again.
    unit->state = ScheduledUnit::State::kOpen;
  }
}

void BackwardScheduler::pre_backward(Call& call, int task, uint64_t sequence) {
  end_open_ended();
  enter(task);
  // A call may have several output nodes. The first node that backward reaches fires the call.
  if (call.fired_task == task) return;
  // Sequence numbers order only nodes of the same graph, so a call fires only in a backward of the
  // graph that its own forward made.
  if (!runs_in(task, call.forward_task)) {
    throw StateError(
        {.what =
             "a backward that was started inside another backward reaches a unit of another graph",
         .cause = "a recomputed function used a tensor whose graph was built outside the function, "
                  "or a hook ran the backward of another graph",
         .hint = "pass the tensor as an argument of the recomputed function, or detach() it; run "
                 "the hook's backward after this backward has ended"});
  }
  // Finished units close first, so that their slots are free when this unit unshards.
  tick(task, sequence);
  // If backward reaches the parent as well, the parent fires first, because its nodes enclose the
  // nodes of this call. If the parent's forward is still running, its outputs have no nodes yet. In
  // this case the parent fires first too, because it owns all nodes that its forward has made.
  const auto parent = call.parent.lock();
  const auto is_around = [&] {
    return parent->will_run() || (is_running(*parent) && runs_in(task, parent->forward_task));
  };
  if (parent && parent->fired_task != task && is_around()) pre_backward(*parent, task, sequence);
  fire(call, task);
}

void BackwardScheduler::pre_backward_around(const std::vector<std::weak_ptr<Call>>& calls, int task,
                                            uint64_t sequence) {
  for (const auto& each : calls) {
    const auto call = each.lock();
    if (call && call->will_run() && runs_in(task, call->forward_task)) {
      pre_backward(*call, task, sequence);
    }
  }
}

void BackwardScheduler::fire_running(const ScheduledUnit& unit, int task) {
  const auto call = running_call(unit, /*task=*/-1);
  if (!call) return;
  // The forward runs outside all backwards, so its call fires in the outermost task, even if the
  // gradient arrives in an inner task. With the highest sequence number, no call counts as over, so
  // no unit closes here.
  pre_backward(*call, tasks_.empty() ? task : tasks_.front(), std::numeric_limits<uint64_t>::max());
}

void BackwardScheduler::fire(Call& call, int task) {
  const auto unit = call.unit.lock();
  if (!unit) {
    throw StateError({.what = "cannot run backward: the engine of the graph was destroyed",
                      .hint = "keep the engine alive until backward is done"});
  }
  call.fired_task = task;
  rest_idle(unit.get());
  if (unit->state == ScheduledUnit::State::kClosed) open_.push_back(unit.get());
  unit->state = ScheduledUnit::State::kOpen;
  // open() is called even if the unit is open already, because it may have been resharded while it
  // was idle.
  unit->engine->open(unit->index, captures());
}

// Closing issues collectives, so it needs an order that is equal on all ranks. The order of calls
// in forward is equal on all ranks. The order in which units open may differ between ranks. Closing
// changes open_, so the caller collects the units first.
void BackwardScheduler::close(std::vector<Closing> units) {
  std::ranges::sort(units, [](const Closing& a, const Closing& b) {
    return std::pair(a.oldest, a.unit->index) > std::pair(b.oldest, b.unit->index);
  });
  for (const Closing& each : units) {
    ScheduledUnit& unit = *each.unit;
    unit.state = ScheduledUnit::State::kClosed;
    std::erase(open_, &unit);
    unit.engine->close(unit.index, captures());
  }
}

// Closes all units that fired in the task and that tick() did not close.
void BackwardScheduler::end_task(int task) {
  const auto found = std::find(tasks_.begin(), tasks_.end(), task);
  if (found == tasks_.end()) return;
  end_open_ended();
  // If an inner task is still on the stack, it failed and the program caught the error. The inner
  // task cannot continue after this task has ended.
  tasks_.erase(found, tasks_.end());
  std::vector<Closing> left;
  for (ScheduledUnit* unit : open_) {
    uint64_t oldest = std::numeric_limits<uint64_t>::max();
    bool enclosed = false;
    for (const Call* call : unit->calls) {
      if (call->fired_task == task) oldest = std::min(oldest, call->ordinal);
      enclosed = enclosed || is_enclosing(call->fired_task);
    }
    const bool fired_here = oldest != std::numeric_limits<uint64_t>::max();
    // A unit of which a call fired in an enclosing task is closed in that task, not at the end of
    // this task. The end of the outermost task closes all units.
    if (tasks_.empty() || (fired_here && !enclosed)) left.push_back({oldest, unit});
  }
  try {
    close(std::move(left));
    if (!tasks_.empty()) return;
    for (ScheduledEngine* engine : engines_) engine->finalize_backward();
  } catch (...) {
    // The task was removed from the stack, so the task's sentinel will not clean up. Therefore the
    // failed backward is cleaned up here.
    if (tasks_.empty()) discard_stale_tasks();
    throw;
  }
}

void BackwardScheduler::abandon_task(int task) {
  const auto found = std::find(tasks_.begin(), tasks_.end(), task);
  if (found == tasks_.end()) return;
  end_open_ended(/*failed=*/true);
  tasks_.erase(found, tasks_.end());
  // If an inner task fails and the program catches the error, the outer task may continue. In this
  // case the end of the outermost task closes the units of both tasks.
  if (tasks_.empty()) discard_stale_tasks();
}

void BackwardScheduler::discard_stale_tasks() {
  end_open_ended(/*failed=*/true);
  tasks_.clear();
  for (ScheduledUnit* unit : std::exchange(open_, {})) {
    unit->state = ScheduledUnit::State::kClosed;
    unit->engine->abandon(unit->index);
  }
  for (ScheduledEngine* engine : engines_) engine->abandon_backward();
}

}  // namespace fsdp
