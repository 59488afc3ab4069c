// The control plane of processes on several hosts, which share only a store.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/job/peer_processes.h"
#include "comm/job/segment_control_plane.h"
#include "comm/store/key_value_store.h"
#include "comm/store/ranks_of_job.h"

namespace fsdp {

// [Note: a job over a store] Each process has a control segment, which covers all ranks of the job.
// Either the segment belongs to this process alone, or all ranks of the host share it. The ranks
// that share a segment are its local ranks, and write to it themselves. For the other ranks, a
// thread of this process reads their reports from the store and writes them to the segment. A rank
// regularly reports that it is alive, and which place it has reached in each of its collective
// sequences. It does so every quarter of a second, or less often in a large job. A rank reports at
// once if the job has failed or if the rank has finished. If a process of a host ends, any rank of
// this host reports the end. If a whole host fails, its ranks are silent. Their silence counts as a
// failure when the time-out has passed.
//
// [Note: collectives over hosts are compared] Other processes cannot read the records that a rank
// posts. So a collective cannot be compared with the collectives of peers before it is issued.
// Instead, each rank reports a hash of all records that it has posted up to its last place. Another
// rank that has passed this place compares the hash with its own, about half a second later. If the
// hashes differ, or if a collective is late, a rank shares the records that it still keeps and asks
// the other ranks to share theirs. The error names the first records that differ.

// The thread that exchanges the contents of a control segment with other processes over the store.
// Shared by the rank's JobMember and the rank's control plane.
class StoreRelay {
 public:
  struct Parts {
    int rank = 0;
    std::vector<PlaceOfRank> places;
    // The segment, and the memory in which it is. All ranks must be present in the segment, with
    // their pids.
    std::shared_ptr<const void> memory;
    ControlSegment control;
    std::unique_ptr<KeyValueStore> store;  // a connection that no other object uses
    std::chrono::milliseconds timeout;
    std::optional<int> server;  // the rank whose process serves the store; empty: none
  };
  // Blocks until all ranks have a relay. Errors: CommError.
  explicit StoreRelay(Parts parts);
  // Reports the last state of this rank in the segment to the other ranks. The rank that serves the
  // store first waits for the others to leave, at most for the time-out.
  ~StoreRelay();
  StoreRelay(const StoreRelay&) = delete;
  StoreRelay& operator=(const StoreRelay&) = delete;

  const ControlSegment& control() const { return parts_.control; }
  // Returns true if the process of `rank` has ended before the rank had finished.
  bool ended(int rank) const {
    // A local rank stores in the segment that it has finished, so the end of its process needs no
    // report.
    return is_reported(rank) || (control().is_local(rank) && processes_.ended(rank));
  }
  // Returns the job's failure if the store does not answer any more.
  Failure failure_of_lost_store(std::string_view cause) const;
  // Makes the thread report changes of the segment at once.
  void wake();
  // Shares this rank's posted collectives, and asks all ranks to share theirs.
  void share_posted();
  // Returns the collective that another rank has posted and shared. Waits for it up to 2 s.
  std::optional<PostedCollective> shared_by(int rank, uint64_t sequence);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::string said;
    Clock::time_point heard;
    // The last place in each sequence, and the hash of all posts up to this place. The segment may
    // have a later place, from a report that another process of this host has read.
    std::array<uint64_t, kOrders> last{};
    std::array<uint64_t, kOrders> history{};  // 0: unknown
    uint64_t wishes_heard = 0;                // requests to share (its wishes_) that were seen
  };

  int size() const { return static_cast<int>(parts_.places.size()); }
  bool is_reported(int rank) const { return ended_[static_cast<size_t>(rank)]; }
  void wait_for_all();
  void run();
  void run_until_end();
  void turn();
  void linger();
  bool all_others_left() const;
  std::chrono::milliseconds pause() const;
  void tell();
  void hear();
  void hear_from(int rank, const std::string& said);
  bool differs(int rank) const;
  void compare();
  void explain();
  void tell_failure();
  void see_processes();
  void answer();
  void fail(const Failure& failure) const { report_failure(control(), failure); }

  const Parts parts_;
  const PeerProcesses processes_;   // other ranks' processes on this host
  std::vector<std::string> alive_;  // keys, by rank
  std::vector<int> others_;         // the ranks that are not local
  std::vector<std::string> others_alive_;
  std::vector<Peer> peers_;               // by rank
  std::vector<std::atomic<bool>> ended_;  // by rank: a process has reported that its process ended
  uint64_t beats_ = 0;
  int64_t ends_heard_ = 0;
  bool failure_is_told_ = false;
  std::optional<int> differs_from_;  // a rank that has posted another collective
  Clock::time_point differs_since_;
  std::mutex mutex_;  // guards the members below
  bool ends_ = false, is_woken_ = false, shares_ = false;
  uint64_t wishes_ = 0;                   // number of times this rank has asked all ranks to share
  std::optional<int> asked_;              // the rank whose posts this rank wants to read
  std::map<int, std::string> posted_by_;  // answers of the rank asked_
  std::condition_variable changed_;
  std::thread thread_;
};

// A control plane over the segment of a StoreRelay.
class StoreControlPlane final : public SegmentControlPlane {
 public:
  StoreControlPlane(std::shared_ptr<const JobMember> member, std::shared_ptr<StoreRelay> relay,
                    Communicator& control)
      : SegmentControlPlane(std::move(member), control), relay_(std::move(relay)) {}

  void fail(const Failure& failure) noexcept override;
  void leave() noexcept override;
  std::optional<PostedCollective> posted(int rank, uint64_t sequence) const override;
  void share_posted() override { relay_->share_posted(); }

 private:
  const std::shared_ptr<StoreRelay> relay_;
};

}  // namespace fsdp
