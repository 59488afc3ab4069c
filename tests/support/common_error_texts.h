// Error texts that tests of several layers compare.
#pragma once

#include <string>

namespace fsdp::testing {

// Ranks that issue different collectives. Both collectives follow.
inline const std::string kDisagree = "ranks disagree about a collective: ";

}  // namespace fsdp::testing
