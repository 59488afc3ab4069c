// The clock of a mesh: decides, at the same place of the graph on every rank, when a unit is
// finished in backward. Shared by all engines of a mesh. Knows nothing of tensors: tasks, numbers
// and units.
//
// [Note: closing]
// Autograd runs the nodes of a graph task in descending sequence number, on one device. A call of a
// unit owns the numbers from its `begin` on. So at a node numbered s every call with begin > s is
// over: all its nodes have run and its gradients have arrived. Arrival itself never closes
// anything: which gradients arrive may differ between ranks, the positions do not.
//
// The clock ticks at the pre_backward of any call, at a unit's forward inside a backward
// (recomputation), and, for promptness, at the newest producer of a call's inputs. At a tick an
// open unit closes if all its calls that fired in this task are over, none of its live calls is
// still to run in this task, and none fired in an enclosing task. A unit that is over but has calls
// still to run is idle: resharded when the next other unit unshards, not reduced. Several close in
// descending order of their oldest fired call. What is left closes at the end of the task it fired
// in. Calls around a fired one fire before it: also those that still run, where forward runs a
// backward. docs/closing.md.
//
// [Note: open-ended calls]
// Nobody reports when a forward of a unit by policy ends, or where it began: what is seen are the
// operators that touch its parameters. Such a call begins where the last touch of any unit ended,
// so that what was made in between (the node of a custom Function, which is there before its
// forward touches anything) is the call's; and it ends when something begins that has nothing to do
// with it: a touch of a unit that is neither inside it nor around it, a Unit's forward or its end,
// a backward. A touch of what is around it (the root's parameters, as a rule) ends nothing: it does
// not tell that the inner forward is over, and ranks need not do it alike.
// A unit's outputs are in front of all that its forward did; not so the results of touches. So a
// function that is recomputed within an open-ended call is to it as a call inside it: the call
// fires before the function's node runs, whichever of its own nodes backward reaches.
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

// One forward of a unit, alive as long as its graph (or its forward) is.
struct Call {
  Call(std::weak_ptr<ScheduledUnit> owner, BackwardScheduler& clock);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::weak_ptr<ScheduledUnit> unit;
  const ScheduledUnit* const of;  // the same, to be compared only
  std::weak_ptr<BackwardScheduler> clock;
  std::weak_ptr<Call> parent;         // the call whose forward contains this one
  uint64_t begin = 0;                 // sequence number of its first node
  uint64_t ordinal = 0;               // counts the calls of the mesh
  int forward_task = -1;              // graph task in which the forward ran (recomputation), or -1
  int fired_task = -1;                // graph task in which its pre_backward ran last, or -1
  int record = -1;                    // index of its entry in the pass's record, or -1
  bool is_open_ended = false;         // [Note: open-ended calls]
  bool in_graph = false;              // backward can reach what it made
  bool runs = false;                  // its forward is under way, and the clock has it
  std::vector<void*> output_nodes;    // hooked nodes that are alive
  std::shared_ptr<const void> spans;  // of traces, which end with its forward

  // True if a hooked node will still run in the current graph task.
  bool will_run() const;
};

// A unit as the clock sees it. Its engine outlives the calls that run.
struct ScheduledUnit {
  // kIdle: over for now, with calls that are still to run.
  enum class State : uint8_t { kClosed, kOpen, kIdle };

  ScheduledEngine* engine = nullptr;
  int index = 0;             // of the engine's units
  std::vector<Call*> calls;  // alive, in the order of their forwards
  State state = State::kClosed;
};

// An engine, as the clock sees it. `unit`: ScheduledUnit::index.
class ScheduledEngine {
 public:
  virtual ~ScheduledEngine() = default;
  // The unit's parameters and reduce slot are needed; may be called while it is open.
  virtual void open(int unit, bool captures) = 0;
  // The unit is finished: reshard, and reduce or keep what was captured (if `captures`).
  virtual void close(int unit, bool captures) = 0;
  // The unit is over for now: reshard, keep the reduce slot.
  virtual void idle(int unit) = 0;
  // After an error: drop the unit's gradients and reshard, without communication.
  virtual void abandon(int unit) = 0;
  // A call of the unit is over: an open-ended one, or one that an error has left (`failed`).
  virtual void end_forward(int unit, Call& call, bool failed) = 0;
  // The outermost graph task is over; or it has failed.
  virtual void finalize_backward() = 0;
  virtual void abandon_backward() = 0;
};

class BackwardScheduler : public SharedByEngines,
                          public std::enable_shared_from_this<BackwardScheduler> {
 public:
  // Guards every transition of every engine of the mesh: nodes of one backward may run on several
  // threads. Recursive because closing a unit may destroy tensors, and with them hooks.
  std::recursive_mutex mutex;

  // Asks autograd; injected so that the rule can be tested without it.
  struct Queries {
    std::function<bool(void* node)> will_run;
    std::function<bool()> inputs_given;                         // autograd::grad(…, inputs)
    std::function<void(std::function<void()>)> at_end_of_task;  // runs once, unless the task fails
  };
  explicit BackwardScheduler(Queries queries) : queries_(std::move(queries)) {}

  void join(ScheduledEngine& engine) { engines_.push_back(&engine); }
  const std::vector<ScheduledEngine*>& engines() const { return engines_; }
  void leave(ScheduledEngine& engine);

  // Forward side.
  uint64_t next_ordinal() { return ++ordinal_; }
  const std::shared_ptr<Call>& innermost_call() const { return calls_.back(); }
  // The innermost that is none of these; null: there is none.
  using WhichCalls = std::function<bool(const Call& call)>;
  std::shared_ptr<Call> innermost_call_but(const WhichCalls& these) const;
  bool in_call() const { return !calls_.empty(); }
  const std::vector<std::shared_ptr<Call>>& calls_under_way() const { return calls_; }
  void push_call(std::shared_ptr<Call> call);
  void pop_call() { calls_.pop_back(); }
  // Ends the open-ended calls that were begun since the last one that is none, but for those that
  // stay; newest first.
  void end_open_ended(bool failed = false, const WhichCalls& stays = {});
  // The call of `unit` that runs in `task` (-1: outside backward), or null.
  std::shared_ptr<Call> running_call(const ScheduledUnit& unit, int task) const;
  // Where the next open-ended call begins: nodes made in this thread from `sequence` on are its.
  void note_boundary(uint64_t sequence);
  // Empty: the last boundary was another thread's, whose numbers are not this one's.
  std::optional<uint64_t> boundary() const;
  // No unit's forward may run on another thread than the outermost one's: sequence numbers are
  // per thread. Errors: StateError.
  void check_thread() const;

  // Backward side. `task` is autograd's id of the running graph task, `sequence` its current
  // node's.
  bool in_backward() const { return !tasks_.empty(); }
  bool captures() const { return !inputs_given_; }
  // Whether graph task `task`, under way or about to be, runs directly inside `enclosing` (-1: it
  // is the outermost).
  bool runs_in(int task, int enclosing) const;
  void enter(int task);
  void tick(int task, uint64_t sequence);
  // Reshards what is idle and runs no forward: another unit is about to unshard.
  void rest_idle(const ScheduledUnit* except);
  // The pre_backward of a call: at the first of its output nodes that runs in a task.
  void pre_backward(Call& call, int task, uint64_t sequence);
  // Fires the open-ended calls around a recomputed function that backward will reach, outermost
  // first: the function's node is about to run.
  void pre_backward_around(const std::vector<std::weak_ptr<Call>>& calls, int task,
                           uint64_t sequence);
  // Fires the unit's call whose forward runs this backward, if there is one. A gradient of the unit
  // arrives in `task`.
  void fire_running(const ScheduledUnit& unit, int task);
  // What a failed backward left behind, if the running forward is not part of it.
  void discard_stale_tasks();

  // The innermost unit that runs, for what is said of an error: its forward, a forward inside a
  // backward, or the backward that was opened last. Null: none. Valid under the mutex.
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
