// Error texts that several tests of this layer compare.
#pragma once

#include <string>

namespace fsdp::testing {

inline const std::string kColorHint = "pass 0 or more; ranks with equal colors form a group";
inline const std::string kOnDifferentCommunicators = ", on different communicators)";
inline const std::string kSameCollectivesHint =
    "issue the same collectives in the same order on every rank; step with the same settings; "
    "look for a condition that depends on the rank or its data";

}  // namespace fsdp::testing
