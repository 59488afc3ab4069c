// Where the ranks of one communicator meet: arrival, waiting, comparing what each came to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/job.h"

namespace fsdp {

// One channel of one rank. Used by one thread at a time.
// [Note: meetings] A collective opens with a letter (record, fingerprint, small payload, where the
// rest lies), all ranks meet, each compares the fingerprints and reads. If memory of a rank is read
// they meet once more, so that it may be used again. Nobody waits without looking at the first
// failure, at the peers' lives, at what they wait for in other channels, and at the clock.
class Meeting {
 public:
  Meeting(std::shared_ptr<const Job> job, ChannelKind channel);

  const Job& job() const { return *job_; }
  RankSlot& slot(int rank) const { return job_->control().slot(channel_, rank); }
  RankSlot& mine() const { return slot(job_->rank()); }
  // Which of the two letters belongs to the open collective.
  int letter() const { return static_cast<int>(opened_ & 1); }

  // Starts the next collective: writes record and fingerprint into this rank's letter.
  // Errors: the job's first failure.
  void open(const CollectiveRecord& record);
  // Arrives and waits until all ranks have. What each wrote before is visible after.
  // Errors: CommError: a rank is missing at the deadline, gone, or has failed.
  void meet();
  // Requires: the first meet after open. Errors: CommError naming both sides if ranks differ.
  void compare() const;

  // Held while peers' memory is read: a thread rank that leaves with an error waits until nobody
  // reads, since its caller will free what it published.
  class Reading {
   public:
    explicit Reading(const Meeting& meeting);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const Meeting& meeting_;
  };

 private:
  bool all_arrived();
  void wait();
  void sleep_once();
  void check_peers();
  void check_other_channels() const;
  // Some rank has not come to the meeting at which `peer` arrived last in that channel.
  bool is_open(int channel, int peer) const;
  // It has arrived in another channel where some rank has not.
  bool is_ahead_elsewhere(int peer) const;
  // The ranks that keep this meeting waiting.
  std::vector<int> absent() const;
  void check_slow(std::chrono::steady_clock::time_point start);
  void check_deadline(std::chrono::steady_clock::time_point start) const;
  // Says that two ranks came to do different things.
  [[noreturn]] void disagree(const std::string& difference, const std::string& where) const;
  [[noreturn]] void leave() const;

  std::shared_ptr<const Job> job_;
  int channel_;
  int spins_;               // none if ranks outnumber the cores
  int sleeps_to_come_ = 0;  // waits that sleep without a yield before
  CollectiveRecord record_{};
  uint64_t opened_ = 0;
  uint64_t phase_ = 0;
  int awaited_ = 0;                                  // ranks below it have arrived
  std::chrono::steady_clock::time_point noticed_{};  // when a process was first seen gone
  bool called_slow_ = false;                         // in this wait
};

}  // namespace fsdp
