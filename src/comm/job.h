// One rank's part in a job: the control segment, the first failure, and whether peers still live.
#pragma once

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

// Shared by a rank's communicators and by whoever holds its memory. The last owner's destruction
// marks the rank as finished, or as failed if an exception is leaving the scope.
class Job {
 public:
  struct Seat {
    std::shared_ptr<void> memory;  // of the control segment: shared with the other thread ranks
    JobControl control;
    int rank;
    std::chrono::milliseconds timeout;
    std::function<bool(int rank)> process_ended;  // empty: ranks are threads
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
  // Keeps the failure if it is the first, and wakes all ranks.
  void fail(const Failure& failure) const noexcept;
  // Says that this rank gives up.
  void give_up(std::string_view cause) const noexcept;
  // Throws the first failure; `where` is added if the failure names no place of its own.
  [[noreturn]] void throw_failure(std::string_view where) const;

  std::optional<PeerEnd> end_of(int peer) const;
  // The failure that `peer`'s end is for a rank that needs it.
  Failure failure_of_end(int peer, PeerEnd end) const;

 private:
  Seat seat_;
  int exceptions_at_start_;
};

}  // namespace fsdp
