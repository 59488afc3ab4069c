// The barrier of one communicator's ranks. Ranks wait for each other at the barrier and compare
// their collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/job/job_member.h"
#include "comm/job/peer_watch.h"

namespace fsdp {

// One rank's side of the barrier, on one channel. Used by one thread at a time. Rank numbers are
// those of the group. Failures and messages use those of the job.
//
// [Note: barriers] To open a collective, a rank writes into its endpoint: the record, the
// fingerprint, and either the data (if they are small) or the places of the data. All ranks pass
// the barrier. Then each rank compares the fingerprints and reads the data of its peers. If any
// rank's memory is read, all ranks pass a second barrier, after which that memory may be reused.
// Each wait checks four things: the job's first failure, the peers' processes, the peers'
// collectives in other channels, and the time.
class GroupBarrier {
 public:
  // Requires: all ranks of the group are local, that is, they share the control segment.
  GroupBarrier(std::shared_ptr<const JobMember> member, RankGroup group);

  const RankGroup& group() const { return group_; }
  Endpoint& endpoint(int rank) const { return *endpoints_[rank]; }
  Endpoint& mine() const { return endpoint(group_.rank); }
  // Returns the index (0 or 1) of the eager buffer, fingerprint and record that the open collective
  // uses. An endpoint has two of each.
  int parity() const { return static_cast<int>(opened_ & 1); }

  // Starts the next collective: writes record and fingerprint into this rank's endpoint. Errors:
  // CommError, the job's first failure.
  void open(const CollectiveRecord& record);
  // Arrives and waits until all ranks have arrived. On return each rank's earlier writes are
  // visible. Errors: CommError if a rank is missing at the deadline, has ended, or has failed.
  void arrive_and_wait();
  // Compares the collectives that the ranks have opened. Must be called after the first barrier
  // that follows open(). Errors: CommError, which names both sides, if the collectives differ.
  void compare() const;

  // A scope in which this rank reads peers' memory. If a thread rank leaves the scope with an
  // error, it waits until no rank reads, because its caller will free the published memory.
  class Reading {
   public:
    explicit Reading(const GroupBarrier& barrier);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const GroupBarrier& barrier_;
  };
  // Waits until no rank of the group reads. A thread rank calls this function after it has reported
  // an error of its own.
  void wait_for_readers() const;

 private:
  bool all_arrived();
  void wait();
  void sleep_once();
  void check_peers();
  void check_other_channels() const;
  void check_devices() const;
  // Returns true if some rank of `peer`'s group on `channel` has not reached the barrier at which
  // `peer` arrived last. This function and the next two take and return the job's rank numbers.
  bool is_open(int channel, int peer) const;
  // Returns true if `peer` has arrived at a barrier of another channel at which some rank is
  // missing.
  bool is_ahead_elsewhere(int peer) const;
  // Returns the ranks that delay this barrier. Excludes missing ranks that themselves wait for
  // another host, or for other ranks in another channel. If all missing ranks wait in another
  // channel, returns all of them.
  std::vector<int> absent() const;
  void check_slow();
  void check_deadline() const;
  // Fails the job because two ranks issued different collectives.
  [[noreturn]] void disagree(int rank, const CollectiveRecord& record, int other_rank,
                             const CollectiveRecord& other, std::string where) const;
  // Throws the job's first failure.
  [[noreturn]] void leave() const;

  std::shared_ptr<const JobMember> member_;
  RankGroup group_;
  std::vector<Endpoint*> endpoints_;
  int spins_;               // number of polls before a wait yields; 0 if ranks outnumber the cores
  int sleeps_to_come_ = 0;  // number of coming waits that sleep without yielding first
  CollectiveRecord record_{};
  uint64_t opened_ = 0;
  uint64_t phase_ = 0;
  int awaited_ = 0;  // ranks with a lower index in the group have arrived
  PeerWatch watch_;
};

}  // namespace fsdp
