// Code that the tests of ports share: world sizes, and a check of printed values.
#pragma once

#include <fsdp/optim.h>

#include <vector>

#include "support/torch_ranks.h"

namespace fsdp::testing {

inline constexpr int kPortRanks[] = {1, 2, 4};

// Checks printed values. If `most` is 0, the bits must be equal. Otherwise `most` is the largest
// allowed difference, relative to the larger of the value and 0.01.
inline void check_values(const std::vector<double>& got, const std::vector<double>& plain,
                         double most) {
  REQUIRE(got.size() == plain.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - plain[i]) <= most * std::max(std::abs(plain[i]), 0.01));
  }
}

}  // namespace fsdp::testing
