#include "checkpoint/optimizer_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr std::string_view kFormat = "fsdp-optimizer";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kVersionWithGroups = "2";
constexpr std::string_view kGroup = "group.";
constexpr const char* kModified = "use an earlier file: this one was modified";

[[noreturn]] void refuse(const SafetensorsFile& file, std::string what, std::string hint) {
  throw IoError(ExitCode::kCorruptData,
                {.what = std::move(what), .where = file.path().string(), .hint = std::move(hint)});
}

std::string_view entry(const Metadata& metadata, std::string_view key) {
  const auto at = metadata.find(std::string(key));
  return at != metadata.end() ? std::string_view(at->second) : std::string_view();
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns the settings of parameter groups in the file.
std::map<std::string, double> groups_in(const SafetensorsFile& file,
                                        const Optimizer::State& state) {
  std::map<std::string, double> groups;
  for (const auto& [key, text] : file.metadata()) {
    if (!std::string_view(key).starts_with(kGroup)) continue;
    const std::string setting = key.substr(kGroup.size());  // "NAME.lr"
    // The group's name ends at the last dot, because the name itself may contain dots.
    const std::string name = setting.substr(0, setting.rfind('.'));
    if (std::ranges::find(state.param_groups(), name, &OptimizerParamGroup::name) ==
        state.param_groups().end()) {
      refuse(file,
             fmt::format("the state has settings of group {}, which the optimizer does not have",
                         quoted_name(name)),
             "construct the optimizer with groups that have the same names as the saved groups");
    }
    const auto value = number_in<double>(text);
    if (!value || !std::isfinite(*value) || *value < 0) {
      refuse(file,
             fmt::format("the state's {} is {}, expected a finite number of 0 or more",
                         quoted_name(setting), quoted_name(text)),
             kModified);
    }
    groups[setting] = *value;
  }
  return groups;
}

}  // namespace

std::string state_name(std::string_view fqn, std::string_view what) {
  return fmt::format("{}.{}", fqn, what);
}

std::string absmax_name(std::string_view moment) { return fmt::format("{}_absmax", moment); }

std::pair<std::string, std::string> memory_order_of(const ParameterSpec& parameter) {
  const bool is_row_major = parameter.strides == row_major(parameter.shape);
  return {fmt::format("strides.{}", parameter.fqn),
          is_row_major ? std::string() : fmt::format("{}", fmt::join(parameter.strides, ","))};
}

const ParameterSpec& spec_of(const Optimizer::State& state, const OptimizedParameter& parameter) {
  return state.engine.model.units[parameter.unit]
      ->shard->layout()
      .parameters()[parameter.parameter];
}

std::string digest_text(uint64_t weights) { return fmt::format("{:016x}", weights); }

std::map<std::string, std::string> optimizer_metadata(const Optimizer::State& state,
                                                      uint64_t weights) {
  const std::map<std::string, double> groups = state.group_values();
  Metadata metadata{{"format", std::string(kFormat)},
                    {"version", std::string(groups.empty() ? kVersion : kVersionWithGroups)},
                    {"optimizer", std::string(state.name)},
                    {"lr", fmt::format("{}", state.lr)},
                    {"steps", fmt::format("{}", state.applied())},
                    {"weights", digest_text(weights)}};
  for (const auto& [name, value] : state.option_values()) metadata[name] = fmt::format("{}", value);
  for (const auto& [setting, value] : groups) {
    metadata[std::string(kGroup) + setting] = fmt::format("{}", value);
  }
  for (const OptimizedParameter& each : state.segments().parameters()) {
    const ParameterSpec& spec = spec_of(state, each);
    if (!state.segments().is_quantized(spec)) continue;
    auto order = memory_order_of(spec);
    if (!order.second.empty()) metadata.insert(std::move(order));
  }
  return metadata;
}

OptimizerHead read_optimizer_head(const SafetensorsFile& file, const Optimizer::State& state) {
  const Metadata& metadata = file.metadata();
  if (entry(metadata, "format") != kFormat) {
    refuse(file, "the file is not an optimizer state",
           "pass a file that save_optimizer wrote; load a file of weights with load_weights");
  }
  const std::string_view version = entry(metadata, "version");
  if (version != kVersion && version != kVersionWithGroups) {
    refuse(file,
           fmt::format("the optimizer state has version {}, expected {} or {}",
                       quoted_name(version), kVersion, kVersionWithGroups),
           "load it with the version of fsdp that wrote it, or a newer one");
  }
  if (entry(metadata, "optimizer") != state.name) {
    refuse(file,
           fmt::format("expected state of {}, got state of {}", state.name,
                       quoted_name(entry(metadata, "optimizer"))),
           "construct an optimizer of the saved type, or do not load the state");
  }
  const auto lr = number_in<double>(entry(metadata, "lr"));
  const auto steps = number_in<int64_t>(entry(metadata, "steps"));
  if (!lr || !std::isfinite(*lr) || *lr < 0 || !steps || *steps < 0) {
    refuse(file,
           fmt::format(
               "the state's lr is {} and its count of steps is {}, expected numbers of 0 or more",
               quoted_name(entry(metadata, "lr")), quoted_name(entry(metadata, "steps"))),
           kModified);
  }
  OptimizerHead head{.steps = *steps,
                     .lr = *lr,
                     .groups = groups_in(file, state),
                     .weights = std::string(entry(metadata, "weights")),
                     .notes = {}};
  // Options may differ on purpose, so differences are reported and the file is not refused.
  for (const auto& [name, value] : state.option_values()) {
    const std::string_view before = entry(metadata, name);
    // Values are compared as text, which identifies a double exactly.
    if (before == fmt::format("{}", value)) continue;
    head.notes.push_back(fmt::format("{} is {}; the saved optimizer had {}", name, value,
                                     before.empty() ? "none" : quoted_name(before)));
  }
  return head;
}

int64_t read_steps(const SafetensorsFile& file, const StoredTensor& tensor) {
  int64_t steps = -1;
  // memcpy is used because the bytes of a file may have any address.
  if (tensor.dtype == StoredDType::kI64 && tensor.numel == 1) {
    std::memcpy(&steps, file.bytes(tensor).data(), sizeof steps);
  }
  if (steps < 0) {
    refuse(file,
           fmt::format("tensor {} is not a count of steps, expected one I64 of 0 or more",
                       quoted_name(tensor.name)),
           kModified);
  }
  return steps;
}

}  // namespace fsdp
