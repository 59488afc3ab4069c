// Failures of a job that NCCL causes or reports.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/collective_peers.h"
#include "comm/job/failure.h"

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
// Returns the failure of a call, or of a collective of the ranks `ranks`, that has lasted longer
// than `within`: CollectivePeers::late or, if that is empty, a stuck link.
Failure is_late(const CollectivePeers& peers, const std::string& communicator,
                const std::vector<int>& ranks, const CallPlace& place,
                std::chrono::milliseconds within);

}  // namespace fsdp
