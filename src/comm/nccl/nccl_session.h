// One rank's side of NCCL: what its communicators share, and what watches over them.
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
// NCCL is not thread-safe over the communicators of a device, and none of its calls may come after
// an abort, nor an abort while a thread is inside another call. So every call of a rank is made
// under the session's one mutex. Communicators do not block: a call that is in progress is asked
// after, under the mutex, until it is through, the job has failed or the deadline is over; so
// whoever holds the mutex lets it go soon, and the watchdog can abort. A call that does block, by a
// fault, leaves nothing that this process could still do: CallWatch notices, the job's other ranks
// are told, and on_stuck ends the process.
//
// [Note: events after the launch]
// A collective of a communicator that does not block may be launched after ncclGroupEnd has
// returned. An event that is recorded before would say that it is over when it has not begun
// (PyTorch did so: pytorch#138860). It is recorded when nothing is in progress any more.
//
// [Note: how a collective that does not end is left]
// The watchdog looks at the oldest collective of each communicator: when its stream has come to it,
// its time begins. A rank that is gone, an error of NCCL's own, the deadline, or the failure of
// another rank ends the job, in this order: the failure is told to all, waits for the device fail
// from then on, all communicators of the rank are aborted, so that their kernels leave the device
// and those waits end. Memory and events go after that: a thread that is about to issue and finds
// the job failed does all of it itself before it throws. What NCCL was about to make stays with the
// session until then, too: its threads write there.

class NcclSession {
 public:
  struct Parts {
    const nccl::Library& library;
    const Device& device;  // this rank's alone
    ControlPlane& plane;   // outlives the session
    std::chrono::milliseconds timeout{30'000};
    // See MeshOptions::first_use.
    int first_use = 10;
    std::chrono::milliseconds looks_every{20};  // the watchdog
    // A call of NCCL or of the device's has not come back within the time-out: the thread in it is
    // lost, and may hold what others need. The other ranks have been told. `failure` is the job's
    // first, with that call as a cause. Called on a thread of the session's own.
    std::function<void(const Failure& failure)> on_stuck;
  };
  explicit NcclSession(Parts parts);
  // Requires: its communicators are gone.
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const nccl::Library& library() const { return parts_.library; }
  const Device& device() const { return parts_.device; }
  ControlPlane& plane() const { return parts_.plane; }
  // For what is no step: the warm collective, splits. One thread of the rank at a time.
  Stream& own_stream() { return *own_stream_; }

  // An NCCL communicator of this rank, with the collectives that are under way.
  struct Member;
  // Shared by who issues and the watchdog.
  using MemberPtr = std::shared_ptr<Member>;

  // One rank makes it for all.
  nccl::UniqueId make_unique_id();
  // `ranks`: of the job, in the communicator's order. Blocks until all are there.
  // Errors: CommError, the job's failure; a rank that does not come is named.
  MemberPtr join(const nccl::UniqueId& id, std::vector<int> ranks, int rank, std::string name);
  struct Split {
    int color = 0, key = 0;
    std::vector<int> ranks;  // those that give the same color, by key
    int rank = 0;
    std::string name;
    bool by_copy_engines = false;  // where they can do what a kernel would
  };
  // Collective over `parent`'s ranks.
  MemberPtr split(Member& parent, Split split);
  // Frees it: in good order where nothing failed.
  void leave(const MemberPtr& member) noexcept;

  // `calls` are made as one group, then the collective is under way on `stream`.
  // Errors: CommError, the job's failure, where there is one; where ranks disagree, both are named;
  //   for what NCCL refuses.
  using Call =
      std::function<nccl::Result(const nccl::Library& library, nccl::Comm* comm, void* stream)>;
  void issue(Member& member, const CollectiveRecord& record, Stream& stream, const Call& calls);

  // Calls that are no work of a stream. One over no communicator; what it returns.
  nccl::Result call(const char* name, const CallPlace& place,
                    const std::function<nccl::Result(const nccl::Library& library)>& make);
  // One that all ranks of `member` make, until it is through. Errors: as issue.
  using CallOver = std::function<nccl::Result(const nccl::Library& library, nccl::Comm* comm)>;
  void call_over(Member& member, const char* name, const CallPlace& place, const CallOver& make);
  // One by which this rank leaves something; what fails there is nobody's failure. `member` may be
  // null: over no communicator. Over one it is not made after an abort.
  void call_at_end(const Member* member, const char* name, const CallOver& make) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  using Calls = CallWatch::Calls;

  // Under the mutex.
  void check(const char* name, nccl::Result result, nccl::Comm* comm, const CallPlace& place);
  // Asks until nothing is in progress any more. Until then no rank of `member` may be gone.
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
  // Within which a call comes back: who is inside one is named before those who wait for it.
  std::chrono::milliseconds call_time() const { return parts_.timeout * 3 / 4; }
  // Tells the job, lets who waits know, aborts all. Under the mutex.
  void give_up(const Failure& failure) noexcept;

  const Parts parts_;
  NcclPeers peers_;
  const std::unique_ptr<Stream> own_stream_;
  CallWatch watch_;
  std::mutex mutex_;  // of all calls of NCCL, and of what follows
  std::list<MemberPtr> members_;
  bool aborted_ = false;
  bool ends_ = false;
  std::condition_variable end_;
  std::thread watchdog_;
};

}  // namespace fsdp
