// Bit operations of PTX that C++ does not have.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fsdp::testing::ptx {

inline uint64_t reversed(uint64_t value, int width) {
  uint64_t result = 0;
  for (int bit = 0; bit < width; ++bit) result = result << 1 | (value >> bit & 1);
  return result;
}

// Returns the value of a truth table with 8 entries for each bit of (a, b, c).
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint64_t table) {
  uint32_t result = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
    result |= static_cast<uint32_t>(table >> index & 1) << bit;
  }
  return result;
}

// Returns four bytes. Each digit of the selector selects one of the eight bytes of b:a, or the sign
// of that byte if 8 is added.
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t select = selector >> (4 * i) & 0xf;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (select & 7)) & 0xff);
    if ((select & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

// Returns `length` bits from bit `at` on. They are extended with zeros, or with the sign if
// `is_signed`. The sign is the last of these bits that is inside the value.
inline uint64_t bit_field(uint64_t value, uint64_t width, uint64_t at, uint64_t length,
                          bool is_signed) {
  if (length == 0) return 0;
  const bool sign = is_signed && (value >> std::min(at + length - 1, width - 1) & 1) != 0;
  uint64_t field = 0;
  for (uint64_t bit = 0; bit < width; ++bit) {
    const bool is_inside = bit < length && at + bit < width;
    const uint64_t one = is_inside ? value >> (at + bit) & 1 : uint64_t{sign};
    field |= one << bit;
  }
  return field;
}

// Returns `value` with the bits from bit `at` on replaced by the low `length` bits of `field`. Bits
// beyond `width` are dropped.
inline uint64_t bits_inserted(uint64_t field, uint64_t value, uint64_t width, uint64_t at,
                              uint64_t length) {
  for (uint64_t bit = 0; bit < length && at + bit < width; ++bit) {
    const uint64_t one = uint64_t{1} << (at + bit);
    value = (field >> bit & 1) != 0 ? value | one : value & ~one;
  }
  return value;
}

}  // namespace fsdp::testing::ptx
