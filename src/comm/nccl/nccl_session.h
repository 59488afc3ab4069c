// One rank's NCCL communicators, with their calls and the watchdog over their collectives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/job/collective_peers.h"
#include "comm/job/collective_record.h"
#include "comm/job/control_plane.h"
#include "comm/nccl/call_watchdog.h"
#include "comm/nccl/nccl_library.h"
#include "runtime/stream.h"

namespace fsdp {

class Device;

// [Note: calls of NCCL] NCCL is not thread-safe over the communicators of a device. No call may
// follow an abort, and no abort may run while a thread is inside another call. So a rank makes
// every call while it holds the session's one mutex. Communicators are non-blocking. A call in
// progress is polled under the mutex until it is complete, the job has failed, or the deadline has
// passed. So every owner of the mutex releases it soon, and the watchdog can abort. If a faulty
// call blocks nevertheless, this process cannot recover. CallWatchdog detects the blocked call, the
// job's other ranks are notified, and on_stuck ends the process.
//
// [Note: events after the launch] A collective of a non-blocking communicator may be launched after
// ncclGroupEnd has returned. If an event is recorded before the launch, the stream reaches the
// event before the collective begins (PyTorch had this bug: pytorch#138860). So the event is
// recorded when no call is in progress any more.
//
// [Note: abort of a collective that does not end] The watchdog looks at the oldest collective of
// each communicator. The time of a collective begins when its stream has reached it. The job ends
// if a rank is gone, NCCL reports an error, the deadline passes, or another rank fails. The session
// then does the following, in this order. It reports the failure to all ranks. It makes every later
// wait for the device fail. It aborts all communicators of the rank, so that their kernels leave
// the device and waits in progress end. Memory and events are released only after the abort. If a
// thread that is about to issue a collective finds that the job has failed, this thread does all of
// this itself before it throws. Until the abort, the session also owns the objects that NCCL is
// still creating, because NCCL's threads write to them.

// The state that one rank's NCCL communicators share. It must be destroyed after them.
class NcclSession {
 public:
  struct Parts {
    const nccl::Library& library;
    const Device& device;  // no other rank may use it
    ControlPlane& plane;   // must outlive the session
    std::chrono::milliseconds timeout{30'000};
    // The value of MeshOptions::first_use.
    int first_use = 10;
    std::chrono::milliseconds looks_every{20};  // interval of the watchdog's checks
    // Called, on a thread of the session, if a call of NCCL or of the device has not returned
    // within the time-out. The thread that made the call never returns, and it may hold locks that
    // other threads need. The other ranks have already been notified. `failure` is the job's first
    // failure, with that call as a cause.
    std::function<void(const Failure& failure)> on_stuck;
  };
  explicit NcclSession(Parts parts);
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const nccl::Library& library() const { return parts_.library; }
  const Device& device() const { return parts_.device; }
  ControlPlane& plane() const { return parts_.plane; }
  // Returns the stream for work outside steps, such as warm-up collectives and splits. Only one
  // thread of the rank may use it at a time.
  Stream& own_stream() { return *own_stream_; }

  // An NCCL communicator of this rank, with its collectives in flight.
  struct Member;
  // Shared by the communicator that issues collectives and the watchdog.
  using MemberPtr = std::shared_ptr<Member>;

  // Makes the id of a new communicator. One rank calls this for all ranks of the communicator.
  nccl::UniqueId make_unique_id();
  // Creates a communicator. `ranks` are ranks of the job, in the communicator's order. Blocks until
  // all of them have arrived. Errors: CommError, the job's failure. If a rank does not arrive, the
  // error names it.
  MemberPtr join(const nccl::UniqueId& id, std::vector<int> ranks, int rank, std::string name);
  struct Split {
    int color = 0, key = 0;
    std::vector<int> ranks;  // ranks that pass the same color, ordered by key
    int rank = 0;
    std::string name;
    bool by_copy_engines = false;  // gathers use copy engines instead of kernels, if possible
  };
  // Creates a communicator of some of `parent`'s ranks. Collective over all ranks of `parent`.
  MemberPtr split(Member& parent, Split split);
  // Frees a communicator. If the job has failed, the communicator is aborted. If the job has not
  // failed, the communicator is destroyed normally.
  void leave(const MemberPtr& member) noexcept;

  // Runs `calls` as one NCCL group. On return the collective is launched on `stream`. Errors:
  // CommError if the job has failed, if ranks disagree (both are named), or if NCCL rejects a call.
  using Call =
      std::function<nccl::Result(const nccl::Library& library, nccl::Comm* comm, void* stream)>;
  void issue(Member& member, const CollectiveRecord& record, Stream& stream, const Call& calls);

  // Makes a call that issues no work on a stream and needs no communicator. Returns its result.
  nccl::Result call(const char* name, const CallPlace& place,
                    const std::function<nccl::Result(const nccl::Library& library)>& make);
  // Makes a call that all ranks of `member` make, and waits until it is complete. Errors: those of
  // issue.
  using CallOver = std::function<nccl::Result(const nccl::Library& library, nccl::Comm* comm)>;
  void call_over(Member& member, const char* name, const CallPlace& place, const CallOver& make);
  // Makes a call that releases something. An error of this call does not fail the job. `member` is
  // null if the call needs no communicator. After an abort, call_at_end makes no call on a
  // communicator.
  void call_at_end(const Member* member, const char* name, const CallOver& make) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  using Calls = CallWatchdog::Calls;

  // Fails the job and throws if `result` is an error. This function and those below require that
  // the caller holds the mutex.
  void check(const char* name, nccl::Result result, nccl::Comm* comm, const CallPlace& place);
  // Polls until no call is in progress any more. Fails the job if a rank of `member` ends before
  // that.
  void finish_progress(Calls& calls, Member& member, const CallPlace& place);
  bool finalize(Calls& calls, const Member& member);
  void end(Calls& calls, const MemberPtr& member, const CallPlace& place);
  std::chrono::milliseconds time_for(const Member& member) const;
  void require_working(const CallPlace& place);
  [[noreturn]] void fail(const Failure& failure, const CallPlace& place);
  MemberPtr add(std::vector<int> ranks, int rank, std::string name);

  void watch(const std::stop_token& ends);
  void look();
  std::optional<Failure> look_at(Calls& calls, Member& member);
  // Returns the time limit of one call. The limit is shorter than the time-out, so the rank whose
  // call hangs is reported before the ranks that wait for it.
  std::chrono::milliseconds call_time() const { return parts_.timeout * 3 / 4; }
  // Reports the failure to the job, makes waits fail and aborts all communicators. Requires the
  // mutex.
  void give_up(const Failure& failure) noexcept;

  const Parts parts_;
  CollectivePeers peers_;
  const std::unique_ptr<Stream> own_stream_;
  CallWatchdog watch_;
  std::mutex mutex_;  // held during all calls of NCCL; guards the members below
  std::list<MemberPtr> members_;
  bool aborted_ = false;
  std::condition_variable_any end_;
  std::jthread watchdog_;  // the last member, because it uses the others
};

}  // namespace fsdp
