// Error texts that several tests of this layer compare.
#pragma once

#include <string>

namespace fsdp::testing {

inline constexpr const char* kNoClone = "a sharded unit cannot be cloned";
inline const std::string kInsidePass = " inside a forward or backward";
inline const std::string kWhileGathered = " is not allowed while parameters are gathered";

}  // namespace fsdp::testing
