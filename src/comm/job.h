// One rank's part in a job: the control segment, the first failure, and whether peers still live.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "comm/failure.h"
#include "comm/job_control.h"

namespace fsdp {

// How a peer is gone. A rank that finished or left may be gone rightly: it matters only to who
// still waits for it.
enum class PeerEnd {
  kFinished,       // its mesh was destroyed in good order
  kReported,       // the launcher saw its process end and says how
  kProcessIsGone,  // its process ended; how is not known (yet, if there is a launcher)
};

// Keeps the failure if it is the first of the job, and wakes all ranks.
void report_failure(const JobControl& control, const Failure& failure) noexcept;
// Throws the job's first failure; `where` is added if that names no place of its own.
[[noreturn]] void throw_first_failure(const JobControl& control, std::string_view where);
// The failure that `peer`'s end is for a rank that needs it.
Failure failure_of_end(const JobControl& control, int peer, PeerEnd end);

// Shared by a rank's communicators and by whoever holds its memory. The last owner's destruction
// marks the rank as finished, or as failed if an exception is leaving the scope.
class Job {
 public:
  struct Seat {
    std::shared_ptr<const void>
        memory;  // of the control segment: shared with the other thread ranks
    JobControl control;
    int rank;
    std::chrono::milliseconds timeout;
    std::function<bool(int rank)> process_ended{};  // empty: ranks are threads
    std::function<void(const SlowRank& slow)> on_slow_rank{};
  };
  explicit Job(Seat seat);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return seat_.rank; }
  int size() const { return seat_.control.world_size(); }
  std::chrono::milliseconds timeout() const { return seat_.timeout; }
  const JobControl& control() const { return seat_.control; }

  bool has_failed() const { return failed(control().failure()); }
  void fail(const Failure& failure) const noexcept { report_failure(control(), failure); }
  // Says that this rank gives up.
  void give_up(std::string_view cause) const noexcept;
  [[noreturn]] void throw_failure(std::string_view where) const {
    throw_first_failure(control(), where);
  }

  std::optional<PeerEnd> end_of(int peer) const;
  // Whether memory that a rank frees is gone for its peers, too.
  bool ranks_are_threads() const { return !seat_.process_ended; }
  // Tells on_slow_rank, unless some rank of the job has told its own about this peer already.
  void call_slow(const SlowRank& slow) const;

 private:
  Seat seat_;
  int exceptions_at_start_;
};

}  // namespace fsdp
