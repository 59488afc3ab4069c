// 64-bit hashes for fingerprints of collectives and for the rolling hash of the collective
// sequence. The hashes are not cryptographic: they detect mistakes, not attacks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fsdp {

// Returns `hash` combined with `value`. The order of calls matters. mix(0, 0) is 0.
constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;
  return hash ^ (hash >> 29);
}

// Returns `hash` combined with the text, eight bytes at a time, and with the length of the text.
inline uint64_t mix_text(uint64_t hash, std::string_view text) {
  hash = mix(hash, text.size());
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t bytes = std::min(text.size(), sizeof(word));
    std::memcpy(&word, text.data(), bytes);
    hash = mix(hash, word);
    text.remove_prefix(bytes);
  }
  return hash;
}

}  // namespace fsdp
