#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace fsdp {

std::string format_bytes(int64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (std::abs(bytes) < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as 1024.0: carry on to the next unit.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace fsdp
