#include "planning/known_rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>

#include <algorithm>
#include <filesystem>

#include "planning/shipped_rates.h"

namespace planning {

std::vector<std::string> rates_names() {
  std::vector<std::string> names;
  for (const ShippedRates& each : kShippedRates) names.emplace_back(each.name);
  return names;
}

fsdp::Rates rates_of_gpu(const std::string& gpu) {
  const std::vector<std::string> names = rates_names();
  if (std::ranges::find(names, gpu) != names.end()) return find_rates(gpu);
  throw fsdp::InvalidArgument(
      {.what = gpu.empty() ? "--time has no value, and there is no --gpu"
                           : fmt::format("there are no rates of --gpu {}", gpu),
       .hint =
           fmt::format("use --time FILE|NAME, or --gpu with one of {}", fmt::join(names, ", "))},
      fsdp::ExitCode::kUsage);
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
