// What the job is told when NCCL does not do what it should.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "comm/job/failure.h"
#include "comm/job/posted_collectives.h"

namespace fsdp {

// A call of `rank` failed; `detail` is what NCCL says more, or empty. `where`: for what it was.
Failure call_failed(int rank, std::string_view call, std::string_view error, std::string detail,
                    std::string where);
Failure call_did_not_return(int rank, std::string_view call, std::chrono::milliseconds within,
                            std::string where);
// Returns the job's first failure, with the call that is stuck behind it as a further cause.
Failure with_stuck_call(Failure first, const Failure& stuck);
// At one place of the host order.
Failure ranks_disagree(int rank, const PostedCollective& own, int peer,
                       const PostedCollective& theirs);
// `of_all`: all ranks have come to it.
Failure is_not_through(bool of_all, std::chrono::milliseconds within, std::string where);

}  // namespace fsdp
