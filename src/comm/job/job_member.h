// One rank's membership of a job whose ranks share a control segment: access to the first failure
// and to the ends of peers.
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
// Returns the failure that `peer`'s end means for a rank that needs it.
Failure failure_of_end(const ControlSegment& control, int peer, PeerEnd end);

enum class RankKind : uint8_t { kThread, kProcess };

// A rank's membership. Shared by the rank's communicators and its control plane. The last owner's
// destruction marks the rank as finished, or as failed if an exception is leaving the scope.
class JobMember {
 public:
  struct Parts {
    std::shared_ptr<const void> memory;  // the control segment's, shared with the other ranks
    ControlSegment control;
    int rank;
    RankKind kind;
    std::chrono::milliseconds timeout;
    std::function<bool(int rank)> process_ended{};  // for processes only
    std::function<void(const SlowRank& slow)> on_slow_rank{};
  };
  explicit JobMember(Parts parts);
  ~JobMember();
  JobMember(const JobMember&) = delete;
  JobMember& operator=(const JobMember&) = delete;

  int rank() const { return parts_.rank; }
  int size() const { return parts_.control.world_size(); }
  // Returns kThread if memory that a rank frees is gone for its peers, too.
  RankKind kind() const { return parts_.kind; }
  std::chrono::milliseconds timeout() const { return parts_.timeout; }
  const ControlSegment& control() const { return parts_.control; }

  bool has_failed() const { return failed(control().failure()); }
  void fail(const Failure& failure) const noexcept { report_failure(control(), failure); }
  [[noreturn]] void throw_failure(std::string_view where) const {
    throw_first_failure(control(), where);
  }

  // Reports, before the communicators are destroyed, the end that the destructor reports.
  void leave() const noexcept { tell_end(RankState::kLeaving); }
  // Returns how `peer` ended; empty while it lives.
  std::optional<PeerEnd> end_of(int peer) const;
  // Calls on_slow_rank unless a rank that shares the segment has already reported this peer.
  void report_slow(const SlowRank& slow) const;

 private:
  void tell_end(RankState in_good_order) const noexcept;

  Parts parts_;
  int exceptions_at_start_;
};

}  // namespace fsdp
