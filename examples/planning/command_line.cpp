#include "planning/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/help_text.h"
#include "run/unknown_flags.h"

namespace planning {
namespace {

[[noreturn]] void refuse(std::string what, std::string hint) {
  throw fsdp::InvalidArgument({.what = std::move(what), .hint = std::move(hint)},
                              fsdp::ExitCode::kUsage);
}

template <class Number>
fsdp::RunFlag number_flag(fsdp::RunFlag flag, Number& target, Number least, Number most) {
  flag.set = [=, name = flag.name, &target](std::string_view value) {
    Number number{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool in = error == std::errc() && end == value.data() + value.size() && number >= least &&
                    number <= most;
    if (!in) {
      refuse(fmt::format("{} cannot be '{}'", name, value),
             fmt::format("a {} from {} to {}",
                         std::is_integral_v<Number> ? "whole number" : "number", least, most));
    }
    target = number;
  };
  return flag;
}

fsdp::RunFlag memory_flag(int64_t& bytes) {
  return {.name = "--memory",
          .value_name = "BYTES",
          .meaning = "what a rank's device has; then also: what fits, and how",
          .set = [&bytes](std::string_view value) {
            const std::optional<int64_t> given = fsdp::parse_bytes(value);
            if (!given || *given == 0) {
              refuse(fmt::format("--memory cannot be '{}'", value), "a size like 80GiB or 500MB");
            }
            bytes = *given;
          }};
}

std::vector<fsdp::RunFlag> own_flags(PlanSettings& settings) {
  constexpr int kMostRanks = 1 << 20;
  constexpr int64_t kMostTokens = 1 << 24;
  return {
      {.name = "--model",
       .value_name = "NAME",
       .meaning = "a preset, or a Hugging Face folder of bert, megatron-bert, gpt2 or llama",
       .set = [&settings](std::string_view value) { settings.model = value; }},
      number_flag({.name = "--ranks", .value_name = "N", .meaning = "of the job", .value = "1"},
                  settings.ranks, 1, kMostRanks),
      number_flag({.name = "--hosts",
                   .value_name = "N",
                   .meaning = "on which they run, the same number on each",
                   .value = "1"},
                  settings.hosts, 1, kMostRanks),
      number_flag({.name = "--batch",
                   .value_name = "N",
                   .meaning = "sequences of a rank and step",
                   .value = "1"},
                  settings.batch.sequences, int64_t{1}, kMostTokens),
      number_flag({.name = "--seq-len",
                   .value_name = "N",
                   .meaning = "tokens of a sequence",
                   .value = "384"},
                  settings.batch.length, int64_t{1}, kMostTokens),
      memory_flag(settings.memory_bytes),
      number_flag({.name = "--bandwidth",
                   .value_name = "GB/s",
                   .meaning = "10^9 bytes a second that a rank sends; with --flops"},
                  settings.gigabytes_per_second, 1e-6, 1e9),
      number_flag({.name = "--flops",
                   .value_name = "TFLOP/s",
                   .meaning = "10^12 operations a second that a rank achieves; with --bandwidth"},
                  settings.teraflops_per_second, 1e-6, 1e9),
  };
}

std::string help_of(const std::vector<fsdp::RunFlag>& own, const fsdp::RunOptions& run) {
  std::string text =
      "usage: fsdp-plan --model NAME --ranks N [FLAGS]\n\n"
      "Says what a training step takes before anything of it exists.\n\n";
  for (const fsdp::RunFlag& flag : own) {
    const std::string now = flag.value.empty() ? "" : fmt::format(" [{}]", flag.value);
    text += fsdp::help_row(flag.name + " " + flag.value_name, flag.meaning + now);
  }
  text += '\n';
  const std::string presets = fmt::format("presets: {}", fmt::join(preset_names(), ", "));
  for (const std::string& line : fsdp::wrapped(presets, 80)) text += line + '\n';
  return text + "\nof the engine, as a run has them (--device auto is cpu here):\n" +
         run.help_text() +
         "\nExit codes: 0 it fits, or no memory was given; 78 it does not; 64 usage.\n";
}

void read(const std::vector<std::string>& words, const std::vector<fsdp::RunFlag>& flags,
          const fsdp::RunOptions& run) {
  std::vector<std::string> names;
  for (const fsdp::RunFlag& flag : flags) names.push_back(flag.name);
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = fsdp::with_hyphens(words[i].substr(0, equals));
    const auto flag = std::ranges::find(flags, name, &fsdp::RunFlag::name);
    if (flag == flags.end()) {
      unknown.push_back(words[i]);
    } else if (equals != std::string::npos) {
      flag->set(std::string_view(words[i]).substr(equals + 1));
    } else if (i + 1 < words.size()) {
      flag->set(words[++i]);
    } else {
      refuse(name + " has no value",
             fmt::format("{} {}: {}", name, flag->value_name, flag->meaning));
    }
  }
}
  std::vector<std::string> unknown;

void check(const PlanSettings& settings) {
  if (settings.model.empty()) refuse("no model is given", "--model NAME; --help lists the presets");
  if (settings.ranks % settings.hosts != 0) {
    refuse(fmt::format("{} ranks are not the same number on each of {} hosts", settings.ranks,
                       settings.hosts),
           "a --ranks that --hosts divides");
  }
  if ((settings.gigabytes_per_second > 0) != (settings.teraflops_per_second > 0)) {
    refuse("one of --bandwidth and --flops is given", "both, or neither");
  }
}

}  // namespace

  if (!unknown.empty()) run.refuse(unknown, names);
int64_t PlanSettings::budget() const {
  const int64_t limit = run.engine.memory_limit;
  if (memory_bytes == 0 || limit == 0) return std::max(memory_bytes, limit);
  return std::min(memory_bytes, limit);
}

PlanSettings parse_command_line(int argc, const char* const* argv) {
  PlanSettings settings;
  settings.run = fsdp::RunOptions::parse(argc, argv, {.others = true});
  const std::vector<fsdp::RunFlag> flags = own_flags(settings);
  const std::vector<std::string>& words = settings.run.rest;
  if (std::ranges::find(words, "--help") != words.end() ||
      std::ranges::find(words, "-h") != words.end()) {
    settings.help = help_of(flags, settings.run);
    return settings;
  }
  read(words, flags, settings.run);
  check(settings);
  // Nothing of a device is needed: a run's choice by what the machine has would be none.
  if (settings.run.mesh.device == fsdp::DeviceKind::kAuto) {
    settings.run.mesh.device = fsdp::DeviceKind::kCpu;
  }
  return settings;
}

}  // namespace planning
