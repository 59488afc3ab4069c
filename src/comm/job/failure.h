// The failure that ends a job, and the ways in which a rank can end.
#pragma once

#include <fsdp/error.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// A failure of the job, with the rank that caused it.
struct Failure {
  int rank = -1;  // the rank at fault; -1: no single rank (ranks that disagree)
  ExitCode code = ExitCode::kPeerFailed;
  ErrorText text;
};

// Throws `failure` as a CommError. If the failure names no place, `where` is added to the message.
// Errors: StateError if there is no failure, because the job has not failed.
[[noreturn]] void throw_failure(std::optional<Failure> failure, std::string_view where);

// Returns the failure of a rank that gives up because of `cause`. If memory is short, the failure
// has no text.
Failure failure_of_abort(int rank, std::string_view cause) noexcept;

// The way in which a peer ended. An end without an error is a failure only for a rank that still
// waits for the peer.
enum class PeerEnd : uint8_t {
  kFinished,       // the peer's mesh was or is being destroyed without an error
  kReported,       // the launcher saw the peer's process end and reports how
  kProcessIsGone,  // the peer's process ended; no launcher has reported how
};

}  // namespace fsdp
