// One rank's membership of a job whose ranks share a control segment. It provides access to the
// first failure and to the ends of peers.
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

// Stores the failure if it is the first of the job, and wakes all ranks.
void report_failure(const ControlSegment& control, const Failure& failure) noexcept;
// Throws the job's first failure. If the failure names no place, `where` is added to the message.
[[noreturn]] void throw_first_failure(const ControlSegment& control, std::string_view where);
// Returns the failure of a peer that has ended but that another rank still needs. `end` is the way
// in which it ended.
Failure failure_of_end(const ControlSegment& control, int peer, PeerEnd end);

enum class RankKind : uint8_t { kThread, kProcess };

// A rank's membership. Shared by the rank's communicators and its control plane. When its last
// owner destroys it, the rank is marked as finished or, if an exception is leaving the scope, as
// failed.
class JobMember {
 public:
  struct Parts {
    std::shared_ptr<const void> memory;  // keeps the control segment alive, which the ranks share
    ControlSegment control;
    int rank;
    RankKind kind;
    std::chrono::milliseconds timeout;
    std::function<bool(int rank)> process_ended{};  // set only if ranks are processes
    std::function<void(const SlowRank& slow)> on_slow_rank{};
  };
  explicit JobMember(Parts parts);
  ~JobMember();
  JobMember(const JobMember&) = delete;
  JobMember& operator=(const JobMember&) = delete;

  int rank() const { return parts_.rank; }
  int size() const { return parts_.control.world_size(); }
  // Returns the kind of the job's ranks. If they are threads, memory that a rank frees is invalid
  // for its peers, too.
  RankKind kind() const { return parts_.kind; }
  std::chrono::milliseconds timeout() const { return parts_.timeout; }
  const ControlSegment& control() const { return parts_.control; }

  bool has_failed() const { return failed(control().failure()); }
  void fail(const Failure& failure) const noexcept { report_failure(control(), failure); }
  [[noreturn]] void throw_failure(std::string_view where) const {
    throw_first_failure(control(), where);
  }

  // Reports the end of this rank before its communicators are destroyed. The destructor reports the
  // same end again.
  void leave() const noexcept { tell_end(RankState::kLeaving); }
  // Returns how `peer` ended. Empty while the peer is alive.
  std::optional<PeerEnd> end_of(int peer) const;
  // Calls on_slow_rank, unless a rank that shares the segment has already reported this peer.
  void report_slow(const SlowRank& slow) const;

 private:
  void tell_end(RankState in_good_order) const noexcept;

  Parts parts_;
  int exceptions_at_start_;
};

}  // namespace fsdp
