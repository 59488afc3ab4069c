#include "io/exact_number.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

namespace fsdp {
namespace {

constexpr std::string_view kNanPrefix = "nan(";

// Converts all of `text`. Returns nothing if the conversion of the value back to text gives another
// text. So each value has one text.
template <typename Value, typename... Format>
std::optional<Value> exact_value(std::string_view digits, std::string_view text, Format... format) {
  Value value{};
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, format...);
  if (error != std::errc{} || stop != end || exact_text(value) != text) return std::nullopt;
  return value;
}

std::optional<double> nan_from_text(std::string_view text) {
  uint64_t bits = 0;
  const std::string_view digits = text.substr(kNanPrefix.size());
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  const auto value = std::bit_cast<double>(bits);
  if (parsed.ec != std::errc{} || !std::isnan(value) || exact_text(value) != text) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::string exact_text(int64_t value) { return fmt::format("{}", value); }

std::string exact_text(double value) {
  if (std::isnan(value))
    return fmt::format("{}{:016x})", kNanPrefix, std::bit_cast<uint64_t>(value));
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::abs(value),
                                 std::chars_format::hex);
  return fmt::format("{}0x{}", std::signbit(value) ? "-" : "",
                     std::string_view(digits.data(), end.ptr));
}

std::optional<int64_t> integer_from_text(std::string_view text) {
  return exact_value<int64_t>(text, text);
}

std::optional<double> double_from_text(std::string_view text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  if (text.starts_with(kNanPrefix)) return nan_from_text(text);
  const bool negative = text.starts_with('-');
  const std::string_view magnitude = text.substr(negative ? 1 : 0);
  if (!magnitude.starts_with("0x")) return std::nullopt;
  const auto value = exact_value<double>(magnitude.substr(2), magnitude, std::chars_format::hex);
  // exact_value refuses a sign after "0x", because exact_text writes the sign of a value before
  // "0x".
  return value && negative ? std::optional(-*value) : value;
}

}  // namespace fsdp
