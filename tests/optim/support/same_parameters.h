// Compares parameters by their bits.
#pragma once

#include <map>
#include <string>

#include "support/torch_ranks.h"

namespace fsdp::testing {

using Parameters = std::map<std::string, at::Tensor>;

inline void check_same_bits(const Parameters& one, const Parameters& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [fqn, value] : one) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, other.at(fqn)));
  }
}

}  // namespace fsdp::testing
