// BackwardScheduler decides when a unit is finished in backward, at the same position of the graph
// on every rank. All engines of a mesh share one scheduler. It handles graph tasks, sequence
// numbers and units, never tensors.
//
// [Note: closing]
// Autograd runs the nodes of a graph task in descending order of their sequence numbers, on one
// device. A call of a unit owns the sequence numbers from its `begin` on. So when node s runs,
// every call with begin > s is over: all nodes of the call have run, and its gradients have
// arrived. The arrival of a gradient never closes a unit, because ranks may receive different
// gradients. Only the positions in the graph are equal on all ranks.
//
// A call fires when backward first reaches one of its outputs (pre_backward). The scheduler decides
// which units to close (tick) when a call fires and when a unit's forward runs inside a backward
// (recomputation). To close units early, it also does so at the node with the highest sequence
// number that produced an input of a call. An open unit then closes if three conditions hold. All
// its calls that fired in this task are over. No other existing call of the unit will run in this
// task. No call of the unit fired in an enclosing task. If its fired calls are over but other calls
// of it will still run, the unit becomes idle. An idle unit is resharded before the next other unit
// unshards, but its gradients are not reduced. If several units close in one tick, they close in
// descending order of their first fired calls (Call::ordinal). The end of a task closes the
// remaining units that fired in the task. The calls that enclose a call fire before it. They
// include a call whose forward has not ended, if the backward was started inside that forward.
// docs/closing.md explains the rule.
//
// [Note: open-ended calls]
// The engine is not notified when the forward of a unit chosen by policy begins or ends. It sees
// only the operators on the unit's parameters. Each such operator is a touch of the unit. A call of
// such a unit begins where the last touch of any unit ended. So the call owns all nodes made since
// that touch. This matters for a custom Function, whose node exists before the Function's forward
// touches a parameter. The call ends when something unrelated begins. This can be a touch of a unit
// that is neither inside nor around the call's unit, the begin or end of an fsdp::Unit's forward,
// or a backward. A touch of an enclosing unit (usually the root's parameters) does not end the
// call. The reason is that the inner forward may continue, and ranks may differ in such touches.
// Backward enters the forward of an fsdp::Unit through the outputs of the unit. It may enter an
// open-ended call at nodes other than the results of the call's touches. So a function that is
// recomputed within an open-ended call counts as a call inside it. The open-ended call then fires
// before the function's node runs, no matter which of the call's own nodes backward reaches first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/mesh_state.h"

namespace fsdp {

class BackwardScheduler;
class ScheduledEngine;
struct ScheduledUnit;

// One forward of a unit. A Call exists until the forward has ended and its graph is freed.
struct Call {
  Call(std::weak_ptr<ScheduledUnit> owner, BackwardScheduler& scheduler);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::weak_ptr<ScheduledUnit> unit;
  const ScheduledUnit* const of;  // address of the same unit, for comparison only
  std::weak_ptr<BackwardScheduler> scheduler;
  std::weak_ptr<Call> parent;         // the call whose forward contains this one
  uint64_t begin = 0;                 // sequence number of its first node
  uint64_t ordinal = 0;               // number among the calls of the mesh
  int forward_task = -1;              // graph task in which the forward ran (recomputation), or -1
  int fired_task = -1;                // graph task in which its pre_backward ran last, or -1
  int record = -1;                    // number of the call in the pass's record, or -1
  bool is_open_ended = false;         // [Note: open-ended calls]
  bool in_graph = false;              // backward can reach its results
  bool runs = false;                  // its forward is under way and known to the scheduler
  std::vector<void*> output_nodes;    // hooked nodes that are alive
  std::shared_ptr<const void> spans;  // trace spans that end with its forward

  // Returns true if a hooked node will still run in the current graph task.
  bool will_run() const;
};

// The scheduler's view of a unit. The unit's engine outlives all running calls of the unit.
struct ScheduledUnit {
  // kIdle: the unit's fired calls are over, and other calls of the unit will still run.
  enum class State : uint8_t { kClosed, kOpen, kIdle };

  ScheduledEngine* engine = nullptr;
  int index = 0;             // index among the engine's units
  std::vector<Call*> calls;  // alive, in the order of their forwards
  State state = State::kClosed;
};

// The scheduler's callbacks into an engine. `unit` is ScheduledUnit::index.
class ScheduledEngine {
 public:
  virtual ~ScheduledEngine() = default;
  // Unshards the unit and, if `captures`, acquires memory for its gradients. May be called for a
  // unit that is open already.
  virtual void open(int unit, bool captures) = 0;
  // Reshards the finished unit and, if `captures`, reduces or keeps its gradients.
  virtual void close(int unit, bool captures) = 0;
  // Reshards an idle unit. The gradients that it has captured stay.
  virtual void idle(int unit) = 0;
  // Drops the unit's gradients and reshards it after an error, without communication.
  virtual void abandon(int unit) = 0;
  // Ends an open-ended call of the unit, or a call whose forward has ended with an error
  // (`failed`).
  virtual void end_forward(int unit, Call& call, bool failed) = 0;
  // Ends the backward: the outermost graph task is over.
  virtual void finalize_backward() = 0;
  // Ends a backward whose outermost graph task failed.
  virtual void abandon_backward() = 0;
};

// The scheduler of a mesh. It does no locking itself: callers must hold `mutex`.
class BackwardScheduler : public SharedByEngines,
                          public std::enable_shared_from_this<BackwardScheduler> {
 public:
  // Guards the states of all engines of the mesh, because several threads may run nodes of one
  // backward. The mutex is recursive: closing a unit may destroy tensors, and the hooks of these
  // tensors lock the mutex again.
  std::recursive_mutex mutex;

  // Queries to autograd. The constructor receives them, so that tests of the closing rule need no
  // graph.
  struct Queries {
    std::function<bool(void* node)> will_run;
    std::function<bool()> inputs_given;                         // autograd::grad(…, inputs)
    std::function<void(std::function<void()>)> at_end_of_task;  // not called if the task fails
  };
  explicit BackwardScheduler(Queries queries) : queries_(std::move(queries)) {}

  void join(ScheduledEngine& engine) { engines_.push_back(&engine); }
  const std::vector<ScheduledEngine*>& engines() const { return engines_; }
  void leave(ScheduledEngine& engine);

  // ---- forward ----
  uint64_t next_ordinal() { return ++ordinal_; }
  const std::shared_ptr<Call>& innermost_call() const { return calls_.back(); }
  using WhichCalls = std::function<bool(const Call& call)>;
  // Returns the innermost call under way for which `these` returns false. Returns null if there is
  // none.
  std::shared_ptr<Call> innermost_call_but(const WhichCalls& these) const;
  bool in_call() const { return !calls_.empty(); }
  const std::vector<std::shared_ptr<Call>>& calls_under_way() const { return calls_; }
  void push_call(std::shared_ptr<Call> call);
  void pop_call() { calls_.pop_back(); }
  // Ends open-ended calls, from the innermost outwards. Stops at the first call that is not
  // open-ended. Does not end calls for which `stays` returns true.
  void end_open_ended(bool failed = false, const WhichCalls& stays = {});
  // Returns the call of `unit` whose forward runs in `task`, or null. For a forward outside
  // backward, `task` is -1.
  std::shared_ptr<Call> running_call(const ScheduledUnit& unit, int task) const;
  // Records the position at which the next open-ended call begins. That call owns the nodes that
  // this thread makes from `sequence` on.
  void note_boundary(uint64_t sequence);
  // Returns the number that note_boundary recorded. Empty if another thread recorded it, because
  // sequence numbers are per thread.
  std::optional<uint64_t> boundary() const;
  // Checks that the outermost forward, if there is one, runs on this thread. The check is needed
  // because sequence numbers are per thread. Errors: StateError if it runs on another thread.
  void check_thread() const;

  // ---- backward ----
  // In these functions `task` is autograd's id of the running graph task, and `sequence` is the
  // number of its current node.
  bool in_backward() const { return !tasks_.empty(); }
  // Returns false in a backward with inputs (autograd::grad), which captures no gradients.
  bool captures() const { return !inputs_given_; }
  // Returns true if graph task `task`, which runs or is about to run, is directly inside
  // `enclosing`. If `enclosing` is -1, returns true if `task` is the outermost task.
  bool runs_in(int task, int enclosing) const;
  // Makes `task` the innermost graph task, unless it is already under way. Registers a callback for
  // the end of the task. Errors: StateError for a second backward on another thread.
  void enter(int task);
  // Closes the units that are finished at node `sequence`. See [Note: closing].
  void tick(int task, uint64_t sequence);
  // Reshards the idle units that run no forward, except the unit `except`. Called before another
  // unit unshards.
  void rest_idle(const ScheduledUnit* except);
  // Fires the calls that enclose `call`, and then `call` itself. Called when backward reaches the
  // first output node of the call. Errors: StateError if the call's forward did not run directly
  // around `task` (see runs_in), or if its engine was destroyed.
  void pre_backward(Call& call, int task, uint64_t sequence);
  // Fires the open-ended calls that enclose a recomputed function, outermost first. Must be called
  // in backward, before the function's node runs.
  void pre_backward_around(const std::vector<std::weak_ptr<Call>>& calls, int task,
                           uint64_t sequence);
  // Fires the call of the unit's forward in which this backward was started, if there is such a
  // forward. Called when a gradient of the unit arrives in `task`.
  void fire_running(const ScheduledUnit& unit, int task);
  // Abandons all tasks and open units of a failed backward. Requires: no forward under way belongs
  // to that backward.
  void discard_stale_tasks();

  // The activity of a unit that runs. A unit runs if its forward is under way, if a backward runs
  // its forward again, or if it is the unit that backward opened last.
  enum class Phase : uint8_t { kForward, kRecompute, kBackward };
  struct Running {
    const ScheduledUnit* unit = nullptr;  // null if no unit runs
    Phase phase = Phase::kForward;
  };
  // Returns the innermost unit that runs, for error messages. The result is valid while the caller
  // holds the mutex.
  Running running() const;

  const Queries& queries() const { return queries_; }

 private:
  void fire(Call& call, int task);
  void end_task(int task);
  void abandon_task(int task);
  // A unit to close, and the ordinal of its oldest call that fired in the task. If an inner task
  // fired the unit and failed, there is no such call, and the ordinal is the largest number.
  struct Closing {
    uint64_t oldest;
    ScheduledUnit* unit;
  };
  // Closes the units, those with the newest calls first.
  void close(std::vector<Closing> units);
  bool is_enclosing(int task) const;
  bool is_running(const Call& call) const;

  Queries queries_;
  std::vector<ScheduledEngine*> engines_;
  std::vector<std::shared_ptr<Call>> calls_;  // forwards under way, outermost first
  std::thread::id forward_thread_, backward_thread_, boundary_thread_;
  uint64_t boundary_ = 0;
  std::vector<int> tasks_;            // graph tasks under way, outermost first
  std::vector<ScheduledUnit*> open_;  // in the order of opening
  uint64_t ordinal_ = 0;
  bool inputs_given_ = false;
};

}  // namespace fsdp
