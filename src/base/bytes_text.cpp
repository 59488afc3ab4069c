#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/bytes.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// Returns the number of bytes in a unit such as "KiB", "mb", "B" or "", or nothing for an unknown
// unit.
std::optional<int64_t> factor_of(std::string_view unit) {
  std::string name;
  for (const char c : unit) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.empty() || name == "b") return 1;
  const bool is_binary = name.ends_with("ib");
  const size_t prefix = std::string_view("kmgt").find(name.front());
  if (prefix == std::string_view::npos || name.size() != (is_binary ? 3 : 2) ||
      name.back() != 'b') {
    return std::nullopt;
  }
  int64_t factor = 1;
  for (size_t i = 0; i <= prefix; ++i) factor *= is_binary ? 1024 : 1000;
  return factor;
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (std::abs(bytes) < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as 1024.0, so the next unit is used.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  // Integers are parsed as integers, because a double is exact only up to 2^53.
  int64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc() || whole < 0) return std::nullopt;
  double number = static_cast<double>(whole);
  const char* unit_at = after;
  const bool has_fraction = after != end && *after == '.';
  if (has_fraction) {
    unit_at = std::from_chars(text.data(), end, number, std::chars_format::fixed).ptr;
  }
  while (unit_at != end && *unit_at == ' ') ++unit_at;
  const std::optional<int64_t> factor = factor_of({unit_at, end});
  if (!factor) return std::nullopt;
  if (!has_fraction) return checked_product(whole, *factor);
  const double bytes = number * static_cast<double>(*factor);
  constexpr double kTooMany = 9.2e18;  // about 2^63
  if (bytes >= kTooMany) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string question_of_unit(std::string_view text) {
  constexpr int64_t kMany = 1'000'000;
  const std::optional<int64_t> bytes = parse_bytes(text);
  const bool is_bare = text.find_first_not_of("0123456789.") == std::string_view::npos;
  if (!bytes || !is_bare || *bytes == 0 || *bytes >= kMany) return {};
  return fmt::format("add a unit: {0}GiB, or {0}B for bytes", text);
}

std::string spell_bytes(int64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

}  // namespace fsdp
