#include "planning/known_rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>

#include <filesystem>

#include "planning/shipped_rates.h"

namespace planning {

std::vector<std::string> rates_names() {
  std::vector<std::string> names;
  for (const ShippedRates& each : kShippedRates) names.emplace_back(each.name);
  return names;
}

fsdp::Rates find_rates(const std::string& name_or_file) {
  for (const ShippedRates& each : kShippedRates) {
    if (each.name == name_or_file) return fsdp::parse_rates(each.text, std::string(each.name));
  }
  std::error_code ignored;
  if (std::filesystem::exists(name_or_file, ignored)) return fsdp::read_rates(name_or_file);
  throw fsdp::InvalidArgument(
      {.what = fmt::format("--time cannot be '{}', which is no file", name_or_file),
       .hint = fmt::format("use a file of rates, or one of {}", fmt::join(rates_names(), ", "))},
      fsdp::ExitCode::kUsage);
}

}  // namespace planning
