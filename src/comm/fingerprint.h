// 64-bit mixing for fingerprints of collectives and for the rolling hash of the host order. Not
// cryptographic: it finds mistakes, not attacks.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp {

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;
  return hash ^ (hash >> 29);
}

constexpr uint64_t mix_text(uint64_t hash, std::string_view text) {
  hash = mix(hash, text.size());
  for (const char c : text) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace fsdp
