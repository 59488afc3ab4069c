// The barrier of one communicator's ranks: arrival, wait, and comparison of their collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/job/job_member.h"
#include "comm/job/peer_watch.h"

namespace fsdp {

// One rank's side of the barrier, on one channel. Used by one thread at a time. Ranks are numbered
// as in the group; failures and messages name those of the job.
//
// [Note: barriers]
// To open a collective a rank writes its endpoint: record, fingerprint, a small payload itself, the
// places of other data. All ranks pass the barrier; each compares the fingerprints and reads. If
// memory of a rank is read, all pass the barrier once more, so that it may be used again. A wait
// always checks the first failure, the peers' lives, their collectives in other channels, and the
// clock.
class GroupBarrier {
 public:
  GroupBarrier(std::shared_ptr<const JobMember> member, RankGroup group);

  const RankGroup& group() const { return group_; }
  Endpoint& endpoint(int rank) const { return *endpoints_[rank]; }
  Endpoint& mine() const { return endpoint(group_.rank); }
  // Returns which of an endpoint's two eager buffers, fingerprints and records the open collective
  // uses.
  int parity() const { return static_cast<int>(opened_ & 1); }

  // Starts the next collective: writes record and fingerprint into this rank's endpoint.
  // Errors: the job's first failure.
  void open(const CollectiveRecord& record);
  // Arrives and waits until all ranks have arrived. Each rank's earlier writes are visible after
  // it.
  // Errors: CommError: a rank is missing at the deadline, gone, or has failed.
  void arrive_and_wait();
  // Compares the collectives that the ranks have opened.
  // Requires: the first barrier after open is passed.
  // Errors: CommError naming both sides if ranks differ.
  void compare() const;

  // A scope in which this rank reads peers' memory. A thread rank that leaves with an error waits
  // until no rank reads, since its caller will free the published memory.
  class Reading {
   public:
    explicit Reading(const GroupBarrier& barrier);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const GroupBarrier& barrier_;
  };
  // Waits until no rank of the group reads. For a thread rank that has reported an error of its
  // own.
  void wait_for_readers() const;

 private:
  bool all_arrived();
  void wait();
  void sleep_once();
  void check_peers();
  void check_other_channels() const;
  void check_devices() const;
  // The next three functions use ranks of the job. Returns true if some rank of `peer`'s group
  // there has not reached the barrier at which `peer` arrived last.
  bool is_open(int channel, int peer) const;
  // Returns true if `peer` has arrived in a channel where some rank has not.
  bool is_ahead_elsewhere(int peer) const;
  // Returns the ranks that keep this barrier waiting.
  std::vector<int> absent() const;
  void check_slow();
  void check_deadline() const;
  // Fails the job, because two ranks issued different collectives.
  [[noreturn]] void disagree(int rank, const CollectiveRecord& record, int other_rank,
                             const CollectiveRecord& other, std::string where) const;
  // Throws the job's first failure.
  [[noreturn]] void leave() const;

  std::shared_ptr<const JobMember> member_;
  RankGroup group_;
  std::vector<Endpoint*> endpoints_;
  int spins_;               // 0 if ranks outnumber the cores
  int sleeps_to_come_ = 0;  // waits that sleep without yielding first
  CollectiveRecord record_{};
  uint64_t opened_ = 0;
  uint64_t phase_ = 0;
  int awaited_ = 0;  // ranks below it have arrived
  PeerWatch watch_;
};

}  // namespace fsdp
