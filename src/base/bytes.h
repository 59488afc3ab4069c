// Arithmetic on sizes that says when it overflows, and sizes for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

constexpr int64_t divide_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

// Empty on overflow or a negative operand: for sizes that come from a file.
constexpr std::optional<int64_t> checked_product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// "512 B", "1.5 KiB", "43.3 MiB", "2.0 GiB".
std::string format_bytes(int64_t bytes);

// What people write: "16GiB", "1.5 GB", "500MB", "1073741824"; KiB is 1024 and KB 1000 bytes, in
// any case. Rounded down to a byte. Empty for anything else, a negative size and one beyond 2^63.
std::optional<int64_t> parse_bytes(std::string_view text);
// Returns a question, "80 bytes? write 80GiB, or 80B", for a number below a million without a unit,
// which is likely to be meant in another one. Empty for all else, and for 0.
std::string question_of_unit(std::string_view text);
// As parse_bytes reads it, and exact: "16GiB", else "500B".
std::string spell_bytes(int64_t bytes);

}  // namespace fsdp
