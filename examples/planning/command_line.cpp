#include "planning/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

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
             fmt::format("use a {} from {} to {}",
                         std::is_integral_v<Number> ? "whole number" : "number", least, most));
    }
    target = number;
  };
  return flag;
}

// Returns a flag whose value is a size. Target is int64_t or an optional of it.
template <class Target>
fsdp::RunFlag bytes_flag(fsdp::RunFlag flag, Target& target, int64_t least) {
  flag.value_name = "BYTES";
  flag.set = [name = flag.name, &target, least](std::string_view value) {
    const std::optional<int64_t> given = fsdp::parse_bytes(value);
    const std::string question = fsdp::question_of_unit(value);
    if (!given || *given < least || !question.empty()) {
      refuse(fmt::format("{} cannot be '{}'", name, value),
             question.empty() ? "use a size like 80GiB or 500MB" : question);
    }
    target = *given;
  };
  return flag;
}

std::vector<fsdp::RunFlag> own_flags(PlanSettings& settings) {
  constexpr int kMostRanks = 1 << 20;
  constexpr int64_t kMostTokens = 1 << 24;
  std::vector<fsdp::RunFlag> flags{
      {.name = "--model",
       .value_name = "NAME",
       .meaning = "a preset, or a Hugging Face folder of bert, megatron-bert, gpt2 or llama",
       .set = [&settings](std::string_view value) { settings.model = value; }},
      number_flag(
          {.name = "--ranks", .value_name = "N", .meaning = "ranks of the job", .value = "1"},
          settings.ranks, 1, kMostRanks),
      number_flag({.name = "--hosts",
                   .value_name = "N",
                   .meaning = "hosts, with the same number of ranks each",
                   .value = "1"},
                  settings.hosts, 1, kMostRanks),
      number_flag({.name = "--batch",
                   .value_name = "N",
                   .meaning = "sequences per rank and step",
                   .value = "1"},
                  settings.batch.sequences, int64_t{1}, kMostTokens),
      number_flag({.name = "--seq-len",
                   .value_name = "N",
                   .meaning = "tokens per sequence",
                   .value = "the model's"},
                  settings.batch.length, int64_t{1}, kMostTokens),
      bytes_flag({.name = "--memory",
                  .meaning = "memory of a rank's device; the plan then shows what fits, and how"},
                 settings.memory_bytes, 1),
      bytes_flag({.name = "--reserve",
                  .meaning = "part of --memory that the plan does not count: a GPU's context, "
                             "NCCL, gaps in the allocator's blocks",
                  .value = "GPUs: a twentieth, 1GiB or more"},
                 settings.reserve_bytes, 0),
      bytes_flag({.name = "--host-memory",
                  .meaning = "memory of a host for all its ranks: main shards with --offload, on "
                             "the CPU all memory of a rank"},
                 settings.host_memory_bytes, 1),
      number_flag({.name = "--bandwidth",
                   .value_name = "GB/s",
                   .meaning = "NCCL's bandwidth for a rank over these hosts: the busbw (10^9 "
                              "bytes/s) of nccl-tests, not a network card's rate; with --flops"},
                  settings.gigabytes_per_second, 1e-6, 1e9),
      number_flag({.name = "--flops",
                   .value_name = "TFLOP/s",
                   .meaning = "10^12 operations a second that a rank achieves; with --bandwidth"},
                  settings.teraflops_per_second, 1e-6, 1e9),
      {.name = "--ema",
       .meaning = "also keep a moving average of the weights (fsdp::Ema)",
       .set = [&settings](std::string_view) { settings.ema = true; }},
      {.name = "--save",
       .meaning = "also show what a checkpoint takes on disk",
       .set = [&settings](std::string_view) { settings.save = true; }},
  };
  // Those of a run's flags on which the size of its checkpoints or their memory depends.
  for (fsdp::RunFlag& flag : settings.run.checkpoint_flags()) {
    if (flag.name == "--save-total-limit" || flag.name == "--save-only-model" ||
        flag.name == "--save-async" || flag.name == "--save-memory-steps") {
      flags.push_back(std::move(flag));
    }
  }
  return flags;
}

std::string help_of(const std::vector<fsdp::RunFlag>& own, const fsdp::RunOptions& run) {
  std::string text =
      "usage: fsdp-plan --model NAME --ranks N [FLAGS]\n\n"
      "Prints what a training step needs, before anything is allocated.\n\n";
  for (const fsdp::RunFlag& flag : own) {
    const std::string now = flag.value.empty() ? "" : fmt::format(" [{}]", flag.value);
    text += fsdp::help_row(flag.name + " " + flag.value_name, flag.meaning + now);
  }
  text += '\n';
  const std::string presets = fmt::format("presets: {}", fmt::join(preset_names(), ", "));
  for (const std::string& line : fsdp::wrapped(presets, 80)) text += line + '\n';
  return text +
         "\nengine flags, as in a run (--device and --param-dtype default to the model's):\n" +
         run.help_text() +
         "\nExit codes: 0 it fits, or no memory was given; 78 it does not; 64 usage.\n";
}

void read(const std::vector<std::string>& words, const std::vector<fsdp::RunFlag>& flags,
          const fsdp::RunOptions& run) {
  std::vector<std::string> names;
  for (const fsdp::RunFlag& flag : flags) names.push_back(flag.name);
  std::vector<std::string> unknown;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& name = words[i];
    const auto flag = std::ranges::find(flags, name, &fsdp::RunFlag::name);
    const bool stands_alone = i + 1 == words.size() || words[i + 1].starts_with("--");
    if (flag == flags.end()) {
      unknown.push_back(name);
    } else if (flag->value_name.empty() || (stands_alone && !flag->alone.empty())) {
      flag->set(flag->alone);
    } else if (i + 1 < words.size()) {
      flag->set(words[++i]);
    } else {
      refuse(name + " has no value",
             fmt::format("use {} {}: {}", name, flag->value_name, flag->meaning));
    }
  }
  if (!unknown.empty()) run.refuse(unknown, names);
}

void check(const PlanSettings& settings) {
  if (settings.model.empty())
    refuse("no model is given", "add --model NAME; --help lists the presets");
  if (settings.ranks % settings.hosts != 0) {
    refuse(fmt::format("{} ranks cannot be divided equally over {} hosts", settings.ranks,
                       settings.hosts),
           "use a --ranks that is a multiple of --hosts");
  }
  if ((settings.gigabytes_per_second > 0) != (settings.teraflops_per_second > 0)) {
    const bool has_flops = settings.teraflops_per_second > 0;
    refuse(fmt::format("{} is missing, but {} is set", has_flops ? "--bandwidth" : "--flops",
                       has_flops ? "--flops" : "--bandwidth"),
           "set both or neither");
  }
  const fsdp::CheckpointOptions& checkpoints = settings.run.checkpoints;
  checkpoints.require_valid();
  if (!settings.save && (checkpoints.save_total_limit > 0 || checkpoints.save_only_model ||
                         checkpoints.state_copies() > 0)) {
    refuse("--save is missing, but --save-total-limit or another flag of checkpoints is set",
           "add --save");
  }
}

// Sets values that are not given to those of the model's usual training. Ranks on several hosts
// require GPUs.
void choose_usual(PlanSettings& settings, const Usual& usual) {
  if (settings.batch.length == 0) settings.batch.length = usual.length;
  fsdp::DeviceKind& device = settings.run.mesh.device;
  if (device == fsdp::DeviceKind::kAuto) {
    device = settings.hosts > 1 ? fsdp::DeviceKind::kCuda : usual.device;
  }
  fsdp::MixedPrecision& types = settings.run.engine.mixed_precision;
  if (!types.param_dtype) types.param_dtype = usual.mixed_precision.param_dtype;
}

void check_room(const PlanSettings& settings) {
  if (settings.hosts > 1 && !settings.on_gpus()) {
    refuse(fmt::format("ranks on {} hosts cannot compute on their CPUs", settings.hosts),
           "use --device cuda or one host: between hosts, collectives run only between GPUs");
  }
  if (settings.memory_bytes > 0 && settings.memory_bytes <= settings.reserve()) {
    refuse(fmt::format("--memory of {} is not more than the reserve of {}",
                       fsdp::format_bytes(settings.memory_bytes),
                       fsdp::format_bytes(settings.reserve())),
           "use a larger --memory or a smaller --reserve");
  }
}

}  // namespace

int64_t PlanSettings::reserve() const {
  if (reserve_bytes) return *reserve_bytes;
  // The values are estimates and were not measured. A context and a few communicators need about 1
  // GiB. Gaps in the allocator need about a twentieth.
  constexpr int64_t kLeast = int64_t{1} << 30;
  constexpr int64_t kPart = 20;
  return on_gpus() ? std::max(kLeast, memory_bytes / kPart) : 0;
}

Room PlanSettings::room() const {
  const int64_t limit = run.engine.memory_limit;
  Room room{.device = limit, .host = host_memory_bytes};
  if (memory_bytes == 0) return room;
  const int64_t device = memory_bytes - reserve();
  room.device = limit == 0 ? device : std::min(device, limit);
  return room;
}

PlanSettings parse_command_line(int argc, const char* const* argv) {
  PlanSettings settings;
  settings.run = fsdp::RunOptions::parse(argc, argv, {.others = true});
  const std::vector<fsdp::RunFlag> flags = own_flags(settings);
  const std::vector<std::string>& words = settings.run.other_arguments;
  if (std::ranges::find(words, "--help") != words.end() ||
      std::ranges::find(words, "-h") != words.end()) {
    settings.help = help_of(flags, settings.run);
    return settings;
  }
  read(words, flags, settings.run);
  check(settings);
  choose_usual(settings, find_model(settings.model).usual);
  check_room(settings);
  return settings;
}

}  // namespace planning
