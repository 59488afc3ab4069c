#include "comm/job/collective_failures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace fsdp {

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(time).count());
}

namespace {

Failure disagreement(const std::string& difference, std::string where) {
  return {
      .rank = -1,
      .code = ExitCode::kPeerFailed,
      .text = {.what = "ranks disagree about a collective: " + difference,
               .where = std::move(where),
               .hint = "issue the same collectives in the same order on every rank; step with the "
                       "same settings; look for a condition that depends on the rank or its data"}};
}

}  // namespace

Failure ranks_disagree(int rank, const CollectiveRecord& record, int other_rank,
                       const CollectiveRecord& other, std::string where) {
  return disagreement(describe_difference(rank, record, other_rank, other), std::move(where));
}

Failure ranks_disagree(int rank, const PostedCollective& own, int peer,
                       const PostedCollective& theirs) {
  return ranks_disagree(
      rank, own.record, peer, theirs.record,
      fmt::format("collective #{}{}", place_of(own.record.sequence),
                  own.communicator == theirs.communicator ? "" : ", on different communicators"));
}

Failure ranks_differ_somewhere(int rank, int other_rank) {
  // The lower rank is named first, so the text is the same, no matter which of the two ranks fails
  // the job.
  return disagreement(fmt::format("ranks {} and {} did not issue the same collectives",
                                  std::min(rank, other_rank), std::max(rank, other_rank)),
                      "at an earlier collective, which is no longer recorded");
}

Failure ranks_are_missing(const std::vector<int>& missing, std::chrono::milliseconds within,
                          std::string where) {
  // The text names all missing ranks. The first of them counts as the rank at fault.
  return {.rank = missing.front(),
          .code = ExitCode::kPeerFailed,
          .text = {.what = fmt::format("rank {} did not arrive within {}", fmt::join(missing, ", "),
                                       seconds_text(within)),
                   .where = std::move(where),
                   .cause = std::string(kLateCause),
                   .hint = std::string(kLookAtRankHint)}};
}

}  // namespace fsdp
