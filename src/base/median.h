// Computes the median of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace fsdp {

// Returns the middle value; of an even number of values, the upper one of the two in the middle.
// Requires: `values` is not empty.
inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace fsdp
