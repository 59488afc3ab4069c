// Failures of a job that NCCL causes or reports.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "comm/job/failure.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// Returns the failure of a call on `rank`. `detail` is further text from NCCL, or empty. `where` is
// the purpose of the call.
Failure call_failed(int rank, std::string_view call, std::string_view error, std::string detail,
                    std::string where);
// Returns the failure of a call on `rank` that has not returned.
Failure call_did_not_return(int rank, std::string_view call, std::chrono::milliseconds within,
                            std::string where);
// Returns the job's first failure, with the stuck call as a further cause.
Failure with_stuck_call(Failure first, const Failure& stuck);
// Returns the failure of two ranks that issued different collectives at the same place of the
// collective sequence.
Failure ranks_disagree(int rank, const PostedCollective& own, int peer,
                       const PostedCollective& theirs);
// Returns the failure of a call or a collective that does not end. `of_all` is true if all ranks
// have made the call or issued the collective.
Failure is_not_through(bool of_all, std::chrono::milliseconds within, std::string where);

}  // namespace fsdp
