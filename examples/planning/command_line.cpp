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

#include "named_optimizer.h"
#include "planning/known_gpus.h"
#include "planning/known_rates.h"

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
    const bool is_number = error == std::errc() && end == value.data() + value.size();
    if (!is_number || !(number >= least && number <= most)) {
      refuse(fmt::format("{} cannot be '{}'", name, value),
             fmt::format("use a {} from {} to {}",
                         std::is_integral_v<Number> ? "whole number" : "number", least, most));
    }
    target = number;
  };
  return flag;
}

// Returns a flag whose value is one number or several with commas between them.
fsdp::RunFlag numbers_flag(fsdp::RunFlag flag, std::vector<int>& target, int most) {
  flag.value_name = "N[,N…]";
  flag.set = [=, &target](std::string_view value) {
    target.clear();
    for (size_t begin = 0, end = 0; begin <= value.size(); begin = end + 1) {
      end = std::min(value.find(',', begin), value.size());
      int number = 0;
      number_flag({.name = flag.name}, number, 1, most).set(value.substr(begin, end - begin));
      target.push_back(number);
    }
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

std::string gpu_names() {
  std::vector<std::string_view> names;
  for (const KnownGpu& gpu : kGpus) names.push_back(gpu.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The value of --time without a value.
constexpr const char* kOfGpu = "of --gpu";

std::vector<fsdp::RunFlag> own_flags(PlanSettings& settings) {
  constexpr int kMostRanks = 1 << 20;
  constexpr int64_t kMostTokens = 1 << 24;
  std::vector<fsdp::RunFlag> flags{
      {.name = "--model",
       .value_name = "NAME",
       .meaning = "a preset, or a Hugging Face folder of bert, megatron-bert, gpt2, llama, "
                  "mistral, qwen2 or qwen3",
       .set = [&settings](std::string_view value) { settings.model = value; }},
      numbers_flag({.name = "--ranks",
                    .meaning = "ranks of the job; several numbers print a table",
                    .value = "1"},
                   settings.ranks_of, kMostRanks),
      numbers_flag({.name = "--hosts",
                    .meaning = "hosts, with the same number of ranks each; one number for all "
                               "numbers of ranks, or one for each",
                    .value = "1"},
                   settings.hosts_of, kMostRanks),
      {.name = "--batch",
       .value_name = "N|largest",
       .meaning = "sequences per rank and step; largest: as many as fit",
       .value = "1",
       .set =
           [&settings](std::string_view value) {
             settings.largest_batch = value == "largest";
             if (settings.largest_batch) return;
             number_flag({.name = "--batch"}, settings.batch.sequences, int64_t{1}, kMostTokens)
                 .set(value);
           }},
      number_flag({.name = "--seq-len",
                   .value_name = "N",
                   .meaning = "tokens per sequence",
                   .value = "the model's"},
                  settings.batch.length, int64_t{1}, kMostTokens),
      bytes_flag({.name = "--memory",
                  .meaning = "memory of a rank's device; the plan then shows what fits, and how"},
                 settings.memory_bytes, 1),
      {.name = "--gpu",
       .value_name = "NAME",
       .meaning = "--device cuda with the --memory of a GPU: " + gpu_names(),
       .set = [&settings](std::string_view value) { settings.gpu = value; }},
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
      {.name = "--time",
       .value_name = "FILE|NAME",
       .meaning = fmt::format("also print the time of a step, from a file of rates "
                              "(docs/rehearsal.md) or from those of {}; without a value: those "
                              "of --gpu",
                              fmt::join(rates_names(), ", ")),
       .alone = kOfGpu,
       .set =
           [&settings](std::string_view value) {
             settings.time_of_gpu = value == kOfGpu;
             if (!settings.time_of_gpu) settings.rates = find_rates(std::string(value));
           }},
      {.name = "--links",
       .value_name = "FILE",
       .meaning = "with --time: links between hosts, from fsdp-doctor --nnodes H --out FILE",
       .set = [&settings](std::string_view value) { settings.links_file = value; }},
      {.name = "--trace",
       .value_name = "FILE",
       .meaning = "with --time: write a trace of the step, for ui.perfetto.dev",
       .set = [&settings](std::string_view value) { settings.trace_file = value; }},
      number_flag({.name = "--price",
                   .value_name = "DOLLARS",
                   .meaning = "with --time: price of a GPU-hour; prints the cost of 10^9 tokens "
                              "(of 10^9 samples for BERT)"},
                  settings.dollars_per_hour, 1e-6, 1e6),
      number_flag({.name = "--watts",
                   .value_name = "W",
                   .meaning = "with --time: power of a GPU and its part of the host; prints kWh "
                              "as --price"},
                  settings.watts, 1e-3, 1e6),
      {.name = "--json",
       .meaning = "print a line of JSON for each run",
       .set = [&settings](std::string_view) { settings.json = true; }},
      {.name = "--optim",
       .value_name = "NAME",
       .meaning = optimizer_names(),
       .value = settings.optim,
       .set = [&settings](std::string_view name) { settings.optim = optimizer_named(name).name; }},
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
      "usage: fsdp-plan --model NAME --ranks N [FLAGS]\n"
      "       fsdp-plan --model NAME --ranks N[,N…] [--strategy all] [--batch largest]\n\n"
      "Prints what a training step needs, before anything is allocated. The second form\n"
      "prints a table.\n\n";
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
    } else if (!stands_alone) {
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
  if (settings.hosts_of.size() > 1 && settings.hosts_of.size() != settings.ranks_of.size()) {
    refuse(fmt::format("--hosts has {} numbers, but --ranks has {}", settings.hosts_of.size(),
                       settings.ranks_of.size()),
           "use one --hosts for all --ranks, or one for each");
  }
  for (size_t i = 0; i < settings.ranks_of.size(); ++i) {
    const int ranks = settings.ranks_of[i], hosts = settings.hosts_with(i);
    if (ranks % hosts == 0) continue;
    refuse(fmt::format("{} ranks cannot be divided equally over {} hosts", ranks, hosts),
           "use a --ranks that is a multiple of --hosts");
  }
  if ((settings.gigabytes_per_second > 0) != (settings.teraflops_per_second > 0)) {
    const bool has_flops = settings.teraflops_per_second > 0;
    refuse(fmt::format("{} is missing, but {} is set", has_flops ? "--bandwidth" : "--flops",
                       has_flops ? "--flops" : "--bandwidth"),
           "set both or neither");
  }
  if (settings.is_table() && settings.teraflops_per_second > 0) {
    refuse("a table has no times by --bandwidth and --flops, but they are set",
           "use --time, or plan one run");
  }
  const bool has_time = settings.rates || settings.time_of_gpu;
  if (has_time && settings.teraflops_per_second > 0) {
    refuse("--time is set, but --bandwidth and --flops are set, too", "leave out one of them");
  }
  for (const auto& [flag, is_set] : {std::pair("--links", !settings.links_file.empty()),
                                     std::pair("--trace", !settings.trace_file.empty()),
                                     std::pair("--price", settings.dollars_per_hour > 0),
                                     std::pair("--watts", settings.watts > 0)}) {
    if (is_set && !has_time) {
      refuse(fmt::format("{} is set, but --time is missing", flag), "add --time FILE|NAME");
    }
  }
  if (settings.is_table() && !settings.trace_file.empty()) {
    refuse("a table has no trace, but --trace is set", "plan one run");
  }
  const fsdp::CheckpointOptions& checkpoints = settings.run.checkpoints;
  checkpoints.require_valid();
  if (!settings.save && (checkpoints.save_total_limit > 0 || checkpoints.save_only_model ||
                         checkpoints.state_copies() > 0)) {
    refuse("--save is missing, but --save-total-limit or another flag of checkpoints is set",
           "add --save");
  }
}

// Sets the memory and the device of --gpu.
void choose_gpu(PlanSettings& settings) {
  if (settings.gpu.empty()) return;
  const KnownGpu* const gpu = find_gpu(settings.gpu);
  if (gpu == nullptr) {
    refuse(fmt::format("--gpu cannot be '{}'", settings.gpu),
           fmt::format("use one of {}, or --device cuda --memory BYTES", gpu_names()));
  }
  if (settings.memory_bytes > 0) refuse("--gpu and --memory are set", "leave out one of them");
  if (settings.run.mesh.device == fsdp::DeviceKind::kCpu) {
    refuse("--gpu is set, but --device is cpu", "leave out one of them");
  }
  settings.memory_bytes = gpu->mebibytes << 20;
  settings.run.mesh.device = fsdp::DeviceKind::kCuda;
}

// Sets values that are not given to those of the model's usual training. Ranks on several hosts
// usually have GPUs.
void choose_usual(PlanSettings& settings, const Usual& usual) {
  if (settings.batch.length == 0) settings.batch.length = usual.length;
  fsdp::DeviceKind& device = settings.run.mesh.device;
  if (device == fsdp::DeviceKind::kAuto) {
    device = settings.most_hosts() > 1 ? fsdp::DeviceKind::kCuda : usual.device;
  }
  fsdp::MixedPrecision& types = settings.run.engine.mixed_precision;
  if (!types.param_dtype) types.param_dtype = usual.mixed_precision.param_dtype;
}

void check_room(const PlanSettings& settings) {
  if (settings.memory_bytes > 0 && settings.memory_bytes <= settings.reserve()) {
    refuse(fmt::format("--memory of {} is not more than the reserve of {}",
                       fsdp::format_bytes(settings.memory_bytes),
                       fsdp::format_bytes(settings.reserve())),
           "use a larger --memory or a smaller --reserve");
  }
  const Room room = settings.room();
  if (settings.largest_batch && room.device == 0 && room.host == 0) {
    refuse("--batch largest needs to know the available memory",
           "add --memory, --gpu or --host-memory");
  }
}

// Moves "--strategy all" from the words of the command line to the settings, because it is not a
// value for a run. Also notes the words that do not choose a row of the table.
std::vector<const char*> take_table_words(PlanSettings& settings, int argc,
                                          const char* const* argv) {
  std::vector<const char*> rest(argv, argv + std::min(argc, 1));
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i], name = word.substr(0, word.find('='));
    const bool has_value = name.size() < word.size();
    const bool chooses = name == "--ranks" || name == "--hosts" || name == "--strategy" ||
                         name == "--batch" || name == "--json";
    const bool takes_next = chooses && name != "--json" && !has_value && i + 1 < argc;
    const std::string_view value =
        has_value ? word.substr(name.size() + 1) : std::string_view(takes_next ? argv[i + 1] : "");
    const bool is_all = name == "--strategy" && value == "all";
    settings.all_strategies |= is_all;
    if (!chooses) settings.common_words.emplace_back(word);
    if (!is_all) rest.push_back(argv[i]);
    if (takes_next && !is_all) rest.push_back(argv[i + 1]);
    i += takes_next ? 1 : 0;
  }
  return rest;
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
  const std::vector<const char*> words_of_run = take_table_words(settings, argc, argv);
  settings.run = fsdp::RunOptions::parse(static_cast<int>(words_of_run.size()), words_of_run.data(),
                                         {.others = true});
  const std::vector<fsdp::RunFlag> flags = own_flags(settings);
  const std::vector<std::string>& words = settings.run.other_arguments;
  if (std::ranges::find(words, "--help") != words.end() ||
      std::ranges::find(words, "-h") != words.end()) {
    settings.help = help_of(flags, settings.run);
    return settings;
  }
  read(words, flags, settings.run);
  check(settings);
  settings.ranks = settings.ranks_of.front();
  settings.hosts = settings.hosts_of.front();
  choose_gpu(settings);
  if (settings.time_of_gpu) settings.rates = rates_of_gpu(settings.gpu);
  if (!settings.links_file.empty()) fsdp::set_link_of_hosts(*settings.rates, settings.links_file);
  choose_usual(settings, find_model(settings.model).usual);
  check_room(settings);
  return settings;
}

}  // namespace planning
