// The failure that a job ends by, and the ways in which a rank can be gone.
#pragma once

#include <fsdp/error.h>

#include <cstdint>
#include <string_view>

namespace fsdp {

struct Failure {
  int rank = -1;  // the guilty one; -1: no single one (ranks that disagree)
  ExitCode code = ExitCode::kPeerFailed;
  ErrorText text;
};

// Throws `failure` as a CommError; `where` is added if it names no place of its own.
[[noreturn]] void throw_failure(Failure failure, std::string_view where);

// The failure of a rank that gives up because of `cause`. Without text where memory is short.
Failure failure_of_abort(int rank, std::string_view cause) noexcept;

// How a peer is gone. A rank that finished or left may be gone rightly: it matters only to who
// still waits for it.
enum class PeerEnd : uint8_t {
  kFinished,       // its mesh was destroyed in good order, or is being destroyed
  kReported,       // the launcher saw its process end and says how
  kProcessIsGone,  // its process ended; how is not known (yet, if there is a launcher)
};

}  // namespace fsdp
