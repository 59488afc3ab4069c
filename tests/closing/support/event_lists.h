// Functions that compare and read lists of events and collectives.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fsdp::testing {

// Returns the first entry in which two lists differ; empty if they are equal.
inline std::string first_difference(const std::vector<std::string>& a,
                                    const std::vector<std::string>& b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "nothing";
    const std::string right = i < b.size() ? b[i] : "nothing";
    if (left != right) return fmt::format("entry {}: {} / {}", i, left, right);
  }
  return {};
}

// Returns the part of a parameter's name that names its unit.
inline std::string unit_of(const std::string& fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string::npos ? "" : fqn.substr(0, dot);
}

}  // namespace fsdp::testing
