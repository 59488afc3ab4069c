// Failures of ranks that do not arrive at a collective, or that issue different collectives.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/collective_record.h"
#include "comm/job/failure.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// A hint to look at a rank that may only be slow.
inline constexpr std::string_view kLookAtRankHint =
    "attach a debugger to that rank; if it is only slow, raise MeshOptions::timeout";

// The cause that a failure names if a rank did not arrive in time but has not ended.
inline constexpr std::string_view kLateCause =
    "its process is alive, but stopped, stuck, slow or busy with other work";

// Formats a time as seconds: "30.0 s".
std::string seconds_text(std::chrono::milliseconds time);

// Returns the failure of two ranks that issued different collectives. `where` names the collective
// in the numbering of the back-end.
Failure ranks_disagree(int rank, const CollectiveRecord& record, int other_rank,
                       const CollectiveRecord& other, std::string where);
// Returns the failure of two ranks that issued different collectives at the same place of the
// collective sequence.
Failure ranks_disagree(int rank, const PostedCollective& own, int peer,
                       const PostedCollective& theirs);
// Returns the failure of two ranks that issued different collectives, if the records of these
// collectives are no longer kept.
Failure ranks_differ_somewhere(int rank, int other_rank);
// Returns the failure of ranks that are alive but did not arrive. `where` names the collective.
Failure ranks_are_missing(const std::vector<int>& missing, std::chrono::milliseconds within,
                          std::string where);

}  // namespace fsdp
