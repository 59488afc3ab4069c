// Computes random numbers from a seed and a position. There is no state, so all ranks get equal
// numbers.
#pragma once

#include <cstdint>

namespace fsdp {

// Maps 64-bit values one-to-one to values that look random. Source: the finaliser of splitmix64
// (Steele et al. 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// A stream of random numbers for a key. at(counter) returns the number at position `counter`.
class CounterStream {
 public:
  constexpr CounterStream(uint64_t seed, uint64_t epoch, uint64_t index)
      : key_(mix64(mix64(mix64(seed) ^ epoch) ^ index)) {}

  constexpr uint64_t at(uint64_t counter) const { return mix64(key_ ^ mix64(counter)); }
  // Returns a number in [0, bound) with a bias of at most bound / 2^64. Requires: bound < 2^32.
  constexpr int64_t below(uint64_t counter, int64_t bound) const {
    const auto product = static_cast<unsigned __int128>(at(counter)) * static_cast<uint64_t>(bound);
    return static_cast<int64_t>(product >> 64);
  }

 private:
  uint64_t key_;
};

}  // namespace fsdp
