#include "comm/nccl/nccl_failures.h"

#include <fmt/format.h>

#include <utility>

#include "comm/job/collective_failures.h"

namespace fsdp {
namespace {

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
                    std::move(where), std::move(detail),
                    "set NCCL_DEBUG=WARN to see NCCL's own messages");
}

Failure call_did_not_return(int rank, std::string_view call, std::chrono::milliseconds within,
                            std::string where) {
  return failure_of(
      rank, fmt::format("{} did not return on rank {} within {}", call, rank, seconds_text(within)),
      std::move(where), "the driver or the link between the GPUs is stuck", kLookAtRankHint);
}

Failure with_stuck_call(Failure first, const Failure& stuck) {
  // If the job's first failure is this stuck call, it is not added a second time, as a cause.
  if (first.text.what == stuck.text.what) return first;
  std::string& cause = first.text.cause;
  cause += fmt::format("{}{} ({})", cause.empty() ? "" : "; ", stuck.text.what, stuck.text.where);
  return first;
}

Failure is_late(const CollectivePeers& peers, const std::string& communicator,
                const std::vector<int>& ranks, const CallPlace& place,
                std::chrono::milliseconds within) {
  if (auto failure = peers.late(communicator, ranks, place, within)) return *failure;
  const bool is_ordered = place.record() != nullptr && place.record()->sequence > 0;
  // The rank is -1, because it is unknown which rank is at fault.
  return failure_of(
      -1, fmt::format("NCCL did not finish within {}", seconds_text(within)), place.text(),
      is_ordered ? "all ranks issued the collective, so the link between their GPUs is stuck"
                 : "a rank did not issue the collective, or the link between the ranks is stuck",
      "set NCCL_DEBUG=INFO to see NCCL's connections; if the collective is only slow, raise "
      "MeshOptions::timeout");
}

}  // namespace fsdp
