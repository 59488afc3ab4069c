#include "comm/nccl/nccl_failures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace fsdp {
namespace {

constexpr std::string_view kLookHint =
    "look at that rank with a debugger, or raise MeshOptions::timeout if it may be that slow";

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(time).count());
}

Failure failure_of(int rank, std::string what, std::string where, std::string cause,
                   std::string_view hint) {
  return {.rank = rank,
          .code = ExitCode::kPeerFailed,
          .text = {.what = std::move(what),
                   .where = std::move(where),
                   .cause = std::move(cause),
                   .hint = std::string(hint)}};
}

}  // namespace

Failure call_failed(int rank, std::string_view call, std::string_view error, std::string detail,
                    std::string where) {
  return failure_of(rank, fmt::format("{} failed on rank {}: {}", call, rank, error),
                    std::move(where), std::move(detail), "NCCL_DEBUG=WARN makes NCCL say more");
}

Failure call_did_not_return(int rank, std::string_view call, std::chrono::milliseconds within,
                            std::string where) {
  return failure_of(
      rank,
      fmt::format("{} has not come back on rank {} after {}", call, rank, seconds_text(within)),
      std::move(where), "the driver, or what connects the GPUs, is stuck", kLookHint);
}

Failure ranks_disagree(int rank, const PostedCollective& own, int peer,
                       const PostedCollective& theirs) {
  const std::string difference = rank < peer
                                     ? describe_difference(rank, own.record, peer, theirs.record)
                                     : describe_difference(peer, theirs.record, rank, own.record);
  return failure_of(
      -1, "ranks disagree about a collective: " + difference,
      fmt::format("place {} of the host order{}", own.record.sequence,
                  own.communicator == theirs.communicator ? "" : ", in different communicators"),
      {},
      "every rank must issue the same collectives in the same order; look for a "
      "condition that depends on the rank or its data");
}

Failure ranks_are_missing(const std::vector<int>& missing, std::chrono::milliseconds within,
                          std::string where) {
  return failure_of(missing.front(),
                    fmt::format("rank {} did not arrive within {}", fmt::join(missing, ", "),
                                seconds_text(within)),
                    std::move(where),
                    "it is alive, but stopped, stuck, slow or doing something else", kLookHint);
}

Failure is_not_through(bool of_all, std::chrono::milliseconds within, std::string where) {
  return failure_of(-1, fmt::format("NCCL is not through after {}", seconds_text(within)),
                    std::move(where),
                    of_all ? "all ranks have come to it: what connects their GPUs is stuck"
                           : "a rank has not come, or what connects the ranks is stuck",
                    "NCCL_DEBUG=INFO shows what NCCL connects by; raise MeshOptions::timeout if it "
                    "may be that slow");
}

}  // namespace fsdp
