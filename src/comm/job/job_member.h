// One rank's membership of a job whose ranks share a control segment: the first failure, and
// whether peers still live.
#pragma once

#include <fsdp/mesh.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "comm/job/control_segment.h"
#include "comm/job/failure.h"

namespace fsdp {

// Keeps the failure if it is the first of the job, and wakes all ranks.
void report_failure(const ControlSegment& control, const Failure& failure) noexcept;
// Throws the job's first failure; `where` is added if that names no place of its own.
[[noreturn]] void throw_first_failure(const ControlSegment& control, std::string_view where);
// The failure that `peer`'s end is for a rank that needs it.
Failure failure_of_end(const ControlSegment& control, int peer, PeerEnd end);

enum class RankKind : uint8_t { kThread, kProcess };

// Shared by a rank's communicators and its control plane. The last owner's destruction marks the
// rank as finished, or as failed if an exception is leaving the scope.
class JobMember {
 public:
  struct Parts {
    std::shared_ptr<const void> memory;  // of the control segment: shared with the other ranks
    ControlSegment control;
    int rank;
    RankKind kind;
    std::chrono::milliseconds timeout;
    std::function<bool(int rank)> process_ended{};  // of processes
    std::function<void(const SlowRank& slow)> on_slow_rank{};
  };
  explicit JobMember(Parts parts);
  ~JobMember();
  JobMember(const JobMember&) = delete;
  JobMember& operator=(const JobMember&) = delete;

  int rank() const { return parts_.rank; }
  int size() const { return parts_.control.world_size(); }
  // Whether memory that a rank frees is gone for its peers, too: they are threads.
  RankKind kind() const { return parts_.kind; }
  std::chrono::milliseconds timeout() const { return parts_.timeout; }
  const ControlSegment& control() const { return parts_.control; }

  bool has_failed() const { return failed(control().failure()); }
  void fail(const Failure& failure) const noexcept { report_failure(control(), failure); }
  [[noreturn]] void throw_failure(std::string_view where) const {
    throw_first_failure(control(), where);
  }

  // Tells the ranks, before the communicators are destroyed, what the destructor tells them.
  void leave() const noexcept { tell_end(RankState::kLeaving); }
  std::optional<PeerEnd> end_of(int peer) const;
  // Tells on_slow_rank, unless some rank that shares the segment has told its own about this peer
  // already.
  void report_slow(const SlowRank& slow) const;

 private:
  void tell_end(RankState in_good_order) const noexcept;

  Parts parts_;
  int exceptions_at_start_;
};

}  // namespace fsdp
