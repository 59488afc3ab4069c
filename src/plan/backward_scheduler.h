// BackwardScheduler decides when a unit is finished in backward, at the same position of the graph
// on every rank. All engines of a mesh share one scheduler. It handles graph tasks, sequence
// numbers and units, never tensors.
//
// [Note: closing]
// Autograd runs the nodes of a graph task in descending sequence number, on one device. A call of a
// unit owns the numbers from its `begin` on. So when node s runs, every call with begin > s is
// over: all its nodes have run and its gradients have arrived. The arrival of a gradient never
// closes a unit: ranks may receive different gradients, but the positions are equal on all ranks.
//
// The scheduler ticks at the pre_backward of each call, at a unit's forward inside a backward
// (recomputation), and, for promptness, at the newest node that made a call's inputs. At a tick an
// open unit closes if all its calls that fired in this task are over, no other live call of it will
// run in this task, and none fired in an enclosing task. If its fired calls are over but other
// calls will still run, the unit is idle: it is resharded before the next other unit unshards, but
// not reduced. Several units close in descending order of their oldest fired call. The end of a
// task closes the remaining units that fired in it. A call fires after the calls around it, also
// after those whose forward is still running because that forward runs the backward.
// docs/closing.md explains the rule.
//
// [Note: open-ended calls]
// No code reports where the forward of a unit by policy begins and ends. The engine sees only the
// operators that touch the unit's parameters. Such a call begins where the last touch of any unit
// ended. So it owns the nodes made since then: a custom Function's node exists before the
// Function's forward touches a parameter. The call ends when something unrelated begins: a touch of
// a unit neither inside nor around it, the begin or end of a Unit's forward, or a backward. A touch
// of a unit around it (usually the root's parameters) ends nothing: the inner forward may continue,
// and ranks may differ in such touches.
// Backward enters the forward of a Unit through its outputs. It may enter an open-ended call
// elsewhere than at the results of its touches. So a function that is recomputed within an
// open-ended call counts as a call inside it: the open-ended call fires before the function's node
// runs, whichever of the call's own nodes backward reaches.
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

// One forward of a unit. It lives until the forward has ended and its graph is freed.
struct Call {
  Call(std::weak_ptr<ScheduledUnit> owner, BackwardScheduler& clock);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::weak_ptr<ScheduledUnit> unit;
  const ScheduledUnit* const of;  // address of `unit`, for comparison only
  std::weak_ptr<BackwardScheduler> clock;
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

// The scheduler's view of a unit. The unit's engine outlives the calls that run.
struct ScheduledUnit {
  // kIdle: its fired calls are over, and others of its calls will still run.
  enum class State : uint8_t { kClosed, kOpen, kIdle };

  ScheduledEngine* engine = nullptr;
  int index = 0;             // among the engine's units
  std::vector<Call*> calls;  // alive, in the order of their forwards
  State state = State::kClosed;
};

// The scheduler's callbacks into an engine. `unit` is ScheduledUnit::index.
class ScheduledEngine {
 public:
  virtual ~ScheduledEngine() = default;
  // Unshards the unit and, with `captures`, opens its gradients. Also called while it is open.
  virtual void open(int unit, bool captures) = 0;
  // Reshards the finished unit and, with `captures`, reduces or keeps its gradients.
  virtual void close(int unit, bool captures) = 0;
  // Reshards a unit that is over for now; its captured gradients stay.
  virtual void idle(int unit) = 0;
  // Drops the unit's gradients and reshards it after an error, without communication.
  virtual void abandon(int unit) = 0;
  // Ends a call of the unit: an open-ended one, or one that an error has left (`failed`).
  virtual void end_forward(int unit, Call& call, bool failed) = 0;
  // Ends the backward: the outermost graph task is over.
  virtual void finalize_backward() = 0;
  // Ends a backward whose outermost graph task failed.
  virtual void abandon_backward() = 0;
};

// The scheduler of a mesh. Not thread-safe by itself: callers hold `mutex`.
class BackwardScheduler : public SharedByEngines,
                          public std::enable_shared_from_this<BackwardScheduler> {
 public:
  // Guards all transitions of all engines of the mesh: several threads may run nodes of one
  // backward. It is recursive because closing a unit may destroy tensors, and their hooks lock it.
  std::recursive_mutex mutex;

  // Queries to autograd; injected so that tests of the rule need no graph.
  struct Queries {
    std::function<bool(void* node)> will_run;
    std::function<bool()> inputs_given;                         // autograd::grad(…, inputs)
    std::function<void(std::function<void()>)> at_end_of_task;  // calls it, unless the task fails
  };
  explicit BackwardScheduler(Queries queries) : queries_(std::move(queries)) {}

  void join(ScheduledEngine& engine) { engines_.push_back(&engine); }
  const std::vector<ScheduledEngine*>& engines() const { return engines_; }
  void leave(ScheduledEngine& engine);

  // ---- forward ----
  uint64_t next_ordinal() { return ++ordinal_; }
  const std::shared_ptr<Call>& innermost_call() const { return calls_.back(); }
  // Returns the innermost call under way for which `these` is false, or null.
  using WhichCalls = std::function<bool(const Call& call)>;
  std::shared_ptr<Call> innermost_call_but(const WhichCalls& these) const;
  bool in_call() const { return !calls_.empty(); }
  const std::vector<std::shared_ptr<Call>>& calls_under_way() const { return calls_; }
  void push_call(std::shared_ptr<Call> call);
  void pop_call() { calls_.pop_back(); }
  // Ends open-ended calls, newest first, back to the newest call that is not open-ended. Calls for
  // which `stays` is true go on.
  void end_open_ended(bool failed = false, const WhichCalls& stays = {});
  // Returns the call of `unit` whose forward runs in `task` (-1: outside backward), or null.
  std::shared_ptr<Call> running_call(const ScheduledUnit& unit, int task) const;
  // Records where the next open-ended call begins: it owns the nodes that this thread makes from
  // `sequence` on.
  void note_boundary(uint64_t sequence);
  // Returns that number. Empty if another thread recorded it: sequence numbers are per thread.
  std::optional<uint64_t> boundary() const;
  // Checks that the outermost forward, if any, runs on this thread: sequence numbers are per
  // thread. Errors: StateError.
  void check_thread() const;

  // ---- backward ----
  // `task` is autograd's id of the running graph task, `sequence` the number of its current node.
  bool in_backward() const { return !tasks_.empty(); }
  // Returns false in a backward with inputs (autograd::grad), which captures no gradients.
  bool captures() const { return !inputs_given_; }
  // Returns true if graph task `task`, running or about to run, is directly inside `enclosing`
  // (-1: it is the outermost).
  bool runs_in(int task, int enclosing) const;
  // Makes `task` the innermost graph task, unless it is under way already, and arranges its end.
  // Errors: StateError for a second backward on another thread.
  void enter(int task);
  // Closes the units that are finished at node `sequence`: [Note: closing].
  void tick(int task, uint64_t sequence);
  // Reshards idle units that run no forward, because another unit is about to unshard.
  void rest_idle(const ScheduledUnit* except);
  // Fires a call, after the calls around it: backward reaches the first of its output nodes.
  // Errors: StateError if the call's forward ran elsewhere, or its engine is gone.
  void pre_backward(Call& call, int task, uint64_t sequence);
  // Fires the open-ended calls around a recomputed function that backward will reach, outermost
  // first. Called before the function's node runs.
  void pre_backward_around(const std::vector<std::weak_ptr<Call>>& calls, int task,
                           uint64_t sequence);
  // Fires the unit's call whose forward runs this backward, if there is one. Called when a gradient
  // of the unit arrives in `task`.
  void fire_running(const ScheduledUnit& unit, int task);
  // Abandons all tasks and open units of a failed backward. Requires: no forward under way belongs
  // to it.
  void discard_stale_tasks();

  // The innermost unit that runs, for error texts: its forward, a forward inside a backward, or the
  // backward that was opened last. Null: none. Valid under the mutex.
  enum class Phase : uint8_t { kForward, kRecompute, kBackward };
  struct Running {
    const ScheduledUnit* unit = nullptr;
    Phase phase = Phase::kForward;
  };
  Running running() const;

  const Queries& queries() const { return queries_; }

 private:
  void fire(Call& call, int task);
  void end_task(int task);
  void abandon_task(int task);
  void close(ScheduledUnit& unit);
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
