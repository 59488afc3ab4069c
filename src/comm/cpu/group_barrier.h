// The barrier of one communicator's ranks: arrival, waiting, comparing what each came to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/cpu/rank_group.h"
#include "comm/job/job_member.h"
#include "comm/job/peer_watch.h"

namespace fsdp {

// One rank's side, on one channel. Used by one thread at a time. Ranks are numbered as in the
// group; failures and messages name those of the job.
//
// [Note: barriers]
// A collective opens by writing this rank's endpoint (record, fingerprint, a small payload itself,
// where the rest lies), all ranks pass the barrier, each compares the fingerprints and reads. If
// memory of a rank is read they pass it once more, so that it may be used again. Nobody waits
// without looking at the first failure, at the peers' lives, at what they wait for in other
// channels, and at the clock.
class GroupBarrier {
 public:
  GroupBarrier(std::shared_ptr<const JobMember> member, RankGroup group);

  const RankGroup& group() const { return group_; }
  Endpoint& endpoint(int rank) const { return *endpoints_[rank]; }
  Endpoint& mine() const { return endpoint(group_.rank); }
  // Which of an endpoint's two eager buffers, fingerprints and records the open collective uses.
  int parity() const { return static_cast<int>(opened_ & 1); }

  // Starts the next collective: writes record and fingerprint into this rank's endpoint.
  // Errors: the job's first failure.
  void open(const CollectiveRecord& record);
  // Arrives and waits until all ranks have. What each wrote before is visible after.
  // Errors: CommError: a rank is missing at the deadline, gone, or has failed.
  void arrive_and_wait();
  // Requires: the first barrier after open is passed.
  // Errors: CommError naming both sides if ranks differ.
  void compare() const;

  // Held while peers' memory is read: a thread rank that leaves with an error waits until nobody
  // reads, since its caller will free what it published.
  class Reading {
   public:
    explicit Reading(const GroupBarrier& barrier);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const GroupBarrier& barrier_;
  };
  // Of a thread rank whose own error the others have been told: until nobody reads any more.
  void wait_for_readers() const;

 private:
  bool all_arrived();
  void wait();
  void sleep_once();
  void check_peers();
  void check_other_channels() const;
  void check_devices() const;
  // These take and give ranks of the job.
  // Some rank of `peer`'s group there has not come to the barrier at which it arrived last.
  bool is_open(int channel, int peer) const;
  // It has arrived in another channel where some rank has not.
  bool is_ahead_elsewhere(int peer) const;
  // Those that keep this barrier waiting.
  std::vector<int> absent() const;
  void check_slow();
  void check_deadline() const;
  // Says that two ranks came to do different things.
  [[noreturn]] void disagree(int rank, const CollectiveRecord& record, int other_rank,
                             const CollectiveRecord& other, std::string where) const;
  [[noreturn]] void leave() const;

  std::shared_ptr<const JobMember> member_;
  RankGroup group_;
  std::vector<Endpoint*> endpoints_;
  int spins_;               // none if ranks outnumber the cores
  int sleeps_to_come_ = 0;  // waits that sleep without a yield before
  CollectiveRecord record_{};
  uint64_t opened_ = 0;
  uint64_t phase_ = 0;
  int awaited_ = 0;  // ranks below it have arrived
  PeerWatch watch_;
};

}  // namespace fsdp
