// One rank's NCCL communicators: their calls, and the watchdog over their collectives.
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
#include <string>
#include <thread>
#include <vector>

#include "comm/job/collective_record.h"
#include "comm/job/control_plane.h"
#include "comm/nccl/call_watch.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_peers.h"
#include "runtime/stream.h"

namespace fsdp {

class Device;

// [Note: calls of NCCL]
// NCCL is not thread-safe over the communicators of a device. No call may follow an abort, and no
// abort may run while a thread is inside another call. So every call of a rank is made under the
// session's one mutex. Communicators are non-blocking: a call in progress is polled, under the
// mutex, until it is complete, the job has failed or the deadline is over. So every owner of the
// mutex releases it soon, and the watchdog can abort. If a call blocks by a fault, this process can
// do nothing more: CallWatch notices it, the job's other ranks are notified, and on_stuck ends the
// process.
//
// [Note: events after the launch]
// A collective of a non-blocking communicator may be launched after ncclGroupEnd has returned. An
// event that is recorded before the launch is reached before the collective has begun (PyTorch did
// so: pytorch#138860). So it is recorded when no call is in progress any more.
//
// [Note: how a collective that does not end is left]
// The watchdog looks at the oldest collective of each communicator, whose time begins when its
// stream has reached it. A rank that is gone, an error of NCCL's own, the deadline, or the
// failure of another rank ends the job, in this order: the failure is reported to all ranks; waits
// for the device fail from then on; all communicators of the rank are aborted, so that their
// kernels leave the device and those waits end. Memory and events are released after that: a thread
// that is about to issue and finds the job failed does all of it itself before it throws. Objects
// that NCCL is still creating also stay with the session until then, because NCCL's threads write
// to them.

// One rank's use of NCCL, shared by its communicators.
class NcclSession {
 public:
  struct Parts {
    const nccl::Library& library;
    const Device& device;  // used by this rank only
    ControlPlane& plane;   // outlives the session
    std::chrono::milliseconds timeout{30'000};
    // See MeshOptions::first_use.
    int first_use = 10;
    std::chrono::milliseconds looks_every{20};  // interval of the watchdog
    // Called, on a thread of the session's own, if a call of NCCL or of the device has not returned
    // within the time-out. The thread in the call is lost, and may hold locks that others need. The
    // other ranks are notified already. `failure` is the job's first, with that call as a cause.
    std::function<void(const Failure& failure)> on_stuck;
  };
  explicit NcclSession(Parts parts);
  // Ends the watchdog. Requires: its communicators are destroyed.
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const nccl::Library& library() const { return parts_.library; }
  const Device& device() const { return parts_.device; }
  ControlPlane& plane() const { return parts_.plane; }
  // Returns the stream for work outside steps: warm-up collectives, splits. One thread of the rank
  // at a time.
  Stream& own_stream() { return *own_stream_; }

  // An NCCL communicator of this rank, with its collectives in flight.
  struct Member;
  // Shared by the communicator that issues, and the watchdog.
  using MemberPtr = std::shared_ptr<Member>;

  // Makes the id of a new communicator; one rank does so for all.
  nccl::UniqueId make_unique_id();
  // Creates a communicator. `ranks` are ranks of the job, in the communicator's order. Blocks until
  // all have arrived.
  // Errors: CommError, the job's failure; a rank that does not arrive is named.
  MemberPtr join(const nccl::UniqueId& id, std::vector<int> ranks, int rank, std::string name);
  struct Split {
    int color = 0, key = 0;
    std::vector<int> ranks;  // ranks that pass the same color, by key
    int rank = 0;
    std::string name;
    bool by_copy_engines = false;  // instead of kernels, if possible
  };
  // Creates a communicator of some of `parent`'s ranks. Collective over all of them.
  MemberPtr split(Member& parent, Split split);
  // Frees a communicator: in good order if nothing failed, else by an abort.
  void leave(const MemberPtr& member) noexcept;

  // Makes `calls` as one group. On return the collective is launched on `stream`.
  // Errors: CommError: the job's failure, if there is one; ranks disagree, both named; NCCL refuses
  //   a call.
  using Call =
      std::function<nccl::Result(const nccl::Library& library, nccl::Comm* comm, void* stream)>;
  void issue(Member& member, const CollectiveRecord& record, Stream& stream, const Call& calls);

  // Makes a call that is no work of a stream and needs no communicator. Returns its result.
  nccl::Result call(const char* name, const CallPlace& place,
                    const std::function<nccl::Result(const nccl::Library& library)>& make);
  // Makes a call that all ranks of `member` make, and waits until it is complete. Errors: as issue.
  using CallOver = std::function<nccl::Result(const nccl::Library& library, nccl::Comm* comm)>;
  void call_over(Member& member, const char* name, const CallPlace& place, const CallOver& make);
  // Makes a call that releases something; its failure fails no rank. `member` is null if the call
  // needs no communicator. After an abort, no call on a communicator is made.
  void call_at_end(const Member* member, const char* name, const CallOver& make) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  using Calls = CallWatch::Calls;

  // Throws, and fails the job, if `result` is an error. Under the mutex, as the functions below.
  void check(const char* name, nccl::Result result, nccl::Comm* comm, const CallPlace& place);
  // Polls until no call is in progress any more. Fails the job if a rank of `member` ends before.
  void finish_progress(Calls& calls, Member& member, const CallPlace& place);
  bool finalize(Calls& calls, const Member& member);
  void end(Calls& calls, const MemberPtr& member, const CallPlace& place);
  std::chrono::milliseconds time_for(const Member& member) const;
  void require_working(const CallPlace& place);
  [[noreturn]] void fail(const Failure& failure, const CallPlace& place);
  MemberPtr add(std::vector<int> ranks, int rank, std::string name);

  void watch();
  void look();
  std::optional<Failure> look_at(Calls& calls, Member& member);
  // Returns the time for one call. It is shorter than the time-out, so that the rank inside the
  // call is named before the ranks that wait for it.
  std::chrono::milliseconds call_time() const { return parts_.timeout * 3 / 4; }
  // Reports the failure to the job, lets waits fail and aborts all communicators. Under the mutex.
  void give_up(const Failure& failure) noexcept;

  const Parts parts_;
  NcclPeers peers_;
  const std::unique_ptr<Stream> own_stream_;
  CallWatch watch_;
  std::mutex mutex_;  // for all calls of NCCL; guards the members below
  std::list<MemberPtr> members_;
  bool aborted_ = false;
  bool ends_ = false;
  std::condition_variable end_;
  std::thread watchdog_;
};

}  // namespace fsdp
