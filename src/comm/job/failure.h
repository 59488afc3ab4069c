// The failure that ends a job, and the ways in which a rank can end.
#pragma once

#include <fsdp/error.h>

#include <cstdint>
#include <string_view>

namespace fsdp {

// A failure of the job, with the rank at fault.
struct Failure {
  int rank = -1;  // the one at fault; -1: no single one (ranks that disagree)
  ExitCode code = ExitCode::kPeerFailed;
  ErrorText text;
};

// Throws `failure` as a CommError; `where` is added if it names no place of its own.
[[noreturn]] void throw_failure(Failure failure, std::string_view where);

// Returns the failure of a rank that gives up because of `cause`. It has no text if memory is
// short.
Failure failure_of_abort(int rank, std::string_view cause) noexcept;

// The way in which a peer ended. A rank that finished may have ended rightly: this matters only to
// a rank that still waits for it.
enum class PeerEnd : uint8_t {
  kFinished,       // its mesh was destroyed in good order, or is being destroyed
  kReported,       // the launcher saw its process end and says how
  kProcessIsGone,  // its process ended; how is not known (yet, if there is a launcher)
};

}  // namespace fsdp
