// Lists of events and collectives, compared and read.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fsdp::testing {

// The first entry in which two lists differ; empty if none does.
inline std::string first_difference(const std::vector<std::string>& a,
                                    const std::vector<std::string>& b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "nothing";
    const std::string right = i < b.size() ? b[i] : "nothing";
    if (left != right) return fmt::format("entry {}: {} / {}", i, left, right);
  }
  return {};
}

// Of a parameter's name.
inline std::string unit_of(const std::string& fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string::npos ? "" : fqn.substr(0, dot);
}

}  // namespace fsdp::testing
