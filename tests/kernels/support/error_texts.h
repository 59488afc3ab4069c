// Error texts that several tests of this layer compare.
#pragma once

#include <string>

namespace fsdp::test {

// The error of an update that cannot store its copy of the parameters as `type`.
inline std::string refused_copy(const std::string& kernel, const std::string& type) {
  return kernel + " cannot store its low-precision copy of the parameters as " + type +
         "; hint: use bfloat16 or float16 for the copy";
}

}  // namespace fsdp::test
