// The beginning of the error about ranks that issue different collectives.
#pragma once

#include <string>

namespace fsdp::testing {

// A description of both collectives follows.
inline const std::string kDisagree = "ranks disagree about a collective: ";

}  // namespace fsdp::testing
