#include "comm/job/failure.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace fsdp {

void throw_failure(std::optional<Failure> failure, std::string_view where) {
  if (!failure) {
    throw StateError({.what = "fsdp tried to report a failed rank, but no rank failed",
                      .hint = "report this as a bug of fsdp"});
  }
  if (failure->text.where.empty()) failure->text.where = where;
  throw CommError(std::move(failure->text), failure->code);
}

Failure failure_of_abort(int rank, std::string_view cause) noexcept {
  try {
    return {.rank = rank,
            .code = ExitCode::kPeerFailed,
            .text = {.what = fmt::format("rank {} gave up", rank),
                     .cause = std::string(cause),
                     .hint = fmt::format("see what rank {} printed", rank)}};
  } catch (const std::exception&) {
    // Memory is short, so the failure has no text. The rank number still identifies the rank.
    return {.rank = rank, .code = ExitCode::kPeerFailed, .text = {}};
  }
}

}  // namespace fsdp
