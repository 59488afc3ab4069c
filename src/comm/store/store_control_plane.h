// The control plane of processes on several hosts, which have nothing in common but a store.
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
#include "runtime/buffer.h"

namespace fsdp {

// [Note: a job over a store]
// Each process has a control segment of its own, of all ranks of the job, and what is written there
// by its peers where ranks share memory is written here by a thread that reads the store. A rank
// says every quarter of a second that it lives, and how far it has come in the host order; and at
// once, that the job has failed or that it has finished. That a process has ended is said by any
// rank of its host that sees it; a host that is gone as a whole is silent, which counts when the
// time-out is over.
//
// [Note: collectives over hosts are compared]
// What a rank posts no other process can read, so nobody compares a collective with its peers'
// before it is issued. With how far it has come each rank says a hash of all that it has posted
// until there; who has been there itself holds its own against it, about half a second later. Then,
// or when something is late, a rank shares the records that it still has, those who hear of it
// share theirs, and the first that differ are named.

// This process's segment, and the thread that speaks for it. Shared by the rank's JobMember, whose
// end it tells, and its control plane.
class StoreRelay {
 public:
  struct Parts {
    int rank = 0;
    std::vector<PlaceOfRank> places;
    std::unique_ptr<KeyValueStore> store;  // a connection of its own
    std::chrono::milliseconds timeout;
    std::optional<int> server;  // the rank with whose process the store ends
  };
  // Blocks until all ranks have one. Errors: CommError.
  explicit StoreRelay(Parts parts);
  // What the segment says of this rank by now is told to the others. Who serves the store waits
  // for them to leave before it, for the time-out at most.
  ~StoreRelay();
  StoreRelay(const StoreRelay&) = delete;
  StoreRelay& operator=(const StoreRelay&) = delete;

  ControlSegment control() const { return {memory_.data(), size()}; }
  // Whether the process of that rank has ended, and not in good order.
  bool ended(int rank) const { return ended_[static_cast<size_t>(rank)]; }
  // What the job is told when the store does not answer any more.
  Failure failure_of_lost_store(std::string_view cause) const;
  // What has changed is told at once.
  void wake();
  // All ranks do that hear of it.
  void share_posted();
  // Of another rank, if it has shared it.
  std::optional<PostedCollective> shared_by(int rank, uint64_t sequence);

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::string said;
    Clock::time_point heard;
    std::array<uint64_t, kOrders> history{};  // of all that it has posted, by order; 0: unknown
    uint64_t wishes_heard = 0;                // of its own
  };

  int size() const { return static_cast<int>(parts_.places.size()); }
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
  const Buffer memory_;
  const PeerProcesses processes_;   // the others of this host
  std::vector<std::string> alive_;  // keys, by rank
  std::vector<Peer> peers_;         // by rank
  std::vector<std::atomic<bool>> ended_;
  uint64_t beats_ = 0;
  int64_t ends_heard_ = 0;
  bool failure_is_told_ = false;
  std::optional<int> differs_from_;  // a rank that has posted something else
  Clock::time_point differs_since_;
  std::mutex mutex_;  // of what follows
  bool ends_ = false, is_woken_ = false, shares_ = false;
  uint64_t wishes_ = 0;                   // of this rank, that all share what they have posted
  std::optional<int> asked_;              // whose posts are to be read
  std::map<int, std::string> posted_by_;  // what came
  std::condition_variable changed_;
  std::thread thread_;
};

class StoreControlPlane final : public SegmentControlPlane {
 public:
  StoreControlPlane(std::shared_ptr<const JobMember> member, std::shared_ptr<StoreRelay> relay,
                    Communicator& control)
      : SegmentControlPlane(member, control),
        member_(std::move(member)),
        relay_(std::move(relay)) {}

  void fail(const Failure& failure) noexcept override;
  void leave() noexcept override;
  std::optional<PostedCollective> posted(int rank, uint64_t sequence) const override;
  void share_posted() override { relay_->share_posted(); }

 private:
  const std::shared_ptr<const JobMember> member_;
  const std::shared_ptr<StoreRelay> relay_;
};

}  // namespace fsdp
