// A vector clock (Fidge and Mattern, 1988). It counts, for each stream, the work that was seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::testing::sim {

class Clock {
 public:
  uint64_t of(int stream) const {
    const auto at = static_cast<size_t>(stream);
    return at < seen_.size() ? seen_[at] : 0;
  }
  // Counts the stream's next work and returns its number.
  uint64_t tick(int stream) {
    const auto at = static_cast<size_t>(stream);
    if (at >= seen_.size()) seen_.resize(at + 1);
    return ++seen_[at];
  }
  void join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }

 private:
  std::vector<uint64_t> seen_;
};

}  // namespace fsdp::testing::sim
