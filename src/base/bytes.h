// Does integer arithmetic on sizes, with checks for overflow.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdp {

constexpr int64_t divide_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

// Returns a * b, or nothing if the product overflows or an operand is negative. Use this function
// for sizes from untrusted files.
constexpr std::optional<int64_t> checked_product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace fsdp
