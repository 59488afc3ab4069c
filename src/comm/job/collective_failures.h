// What the job is told when ranks do not come to a collective, or come to do different things.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/collective_record.h"
#include "comm/job/failure.h"

namespace fsdp {

// What helps with a rank that may only be slow.
inline constexpr std::string_view kLookAtRankHint =
    "look at that rank with a debugger, or raise MeshOptions::timeout if it may be that slow";

// What is known of one that did not come in time, and has not ended.
inline constexpr std::string_view kLateCause =
    "it is alive, but stopped, stuck, slow or doing something else";

// "30.0 s".
std::string seconds_text(std::chrono::milliseconds time);

// `where`: at which collective, counted as its back-end counts them.
Failure ranks_disagree(int rank, const CollectiveRecord& record, int other_rank,
                       const CollectiveRecord& other, std::string where);
// The same, where it is too long ago to say which.
Failure ranks_differ_somewhere(int rank, int other_rank);
// Those that live. `where`: for what they are waited for.
Failure ranks_are_missing(const std::vector<int>& missing, std::chrono::milliseconds within,
                          std::string where);

}  // namespace fsdp
