#include "comm/job/job_member.h"

#include <fmt/format.h>

#include <exception>

#include "comm/job/process_end.h"

namespace fsdp {

JobMember::JobMember(Parts parts)
    : parts_(std::move(parts)), exceptions_at_start_(std::uncaught_exceptions()) {}

JobMember::~JobMember() { tell_end(RankState::kFinished); }

void JobMember::tell_end(RankState in_good_order) const noexcept {
  // The number of uncaught exceptions is compared with the number at construction, not with 0,
  // because the mesh may have been made in a destructor that runs while an exception unwinds the
  // stack.
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    fail(failure_of_abort(rank(), "an exception ended its program"));
    return;
  }
  control().status(rank()).state.store(in_good_order, std::memory_order_seq_cst);
  // Wakes the ranks that sleep, so that a rank that still needs this rank notices at once that it
  // has ended.
  control().wake_all();
}

void report_failure(const ControlSegment& control, const Failure& failure) noexcept {
  keep_first(control.failure(), failure);
  control.wake_all();
}

void throw_first_failure(const ControlSegment& control, std::string_view where) {
  throw_failure(first_failure(control.failure()), where);
}

std::optional<PeerEnd> JobMember::end_of(int peer) const {
  switch (control().status(peer).state.load(std::memory_order_seq_cst)) {
    case RankState::kLeaving:
    case RankState::kFinished:
      return PeerEnd::kFinished;
    case RankState::kEnded:
      return PeerEnd::kReported;
    case RankState::kAbsent:
    case RankState::kPresent:
      break;
  }
  // A process that is killed cannot store its end in `state`, so the kernel is asked whether the
  // process still runs.
  const bool is_gone = kind() == RankKind::kProcess && parts_.process_ended(peer);
  return is_gone ? std::optional(PeerEnd::kProcessIsGone) : std::nullopt;
}

void JobMember::report_slow(const SlowRank& slow) const {
  // Many ranks may wait for the same peer, but one report is enough.
  if (control().status(slow.rank).reported_slow.exchange(1) != 0) return;
  if (parts_.on_slow_rank) parts_.on_slow_rank(slow);
}

Failure failure_of_end(const ControlSegment& control, int peer, PeerEnd end) {
  const RankStatus& status = control.status(peer);
  Failure failure{.rank = peer, .code = ExitCode::kPeerFailed, .text = {}};
  failure.text.hint = fmt::format("see what rank {} printed, then restart the job", peer);
  switch (end) {
    case PeerEnd::kFinished:
      failure.text.what = fmt::format("rank {} left while other ranks still need it", peer);
      failure.text.cause = "its program destroyed its mesh before the other ranks did";
      failure.text.hint = "issue the same collectives on every rank until the end";
      break;
    case PeerEnd::kReported:
      failure.text.what = describe_end(peer, status.wait_status.load());
      failure.text.hint =
          hint_for_end(peer, status.wait_status.load(), status.out_of_memory.load() != 0);
      break;
    case PeerEnd::kProcessIsGone:
      failure.text.what =
          fmt::format("rank {} died: its process (pid {}) ended", peer, status.pid.load());
      break;
  }
  return failure;
}

}  // namespace fsdp
