// The engine's flags: their names, values and effects on RunOptions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fsdp/program_text.h"
#include "fsdp/run_options.h"
#include "plan/placement.h"
#include "run/flag_kinds.h"
#include "runtime/dtype.h"

namespace fsdp {
namespace {

constexpr std::array kDevices{Choice{"auto", DeviceKind::kAuto}, Choice{"cpu", DeviceKind::kCpu},
                              Choice{"cuda", DeviceKind::kCuda}};
// These constants use runtime/dtype.h, because this layer sees only a declaration of
// c10::ScalarType.
constexpr auto kFloat32 = scalar_type_of(DType::kFloat32);
constexpr auto kBFloat16 = scalar_type_of(DType::kBFloat16);
constexpr auto kFloat16 = scalar_type_of(DType::kFloat16);
constexpr std::array kDTypes{Choice{"float32", kFloat32},   Choice{"fp32", kFloat32, true},
                             Choice{"bfloat16", kBFloat16}, Choice{"bf16", kBFloat16, true},
                             Choice{"float16", kFloat16},   Choice{"fp16", kFloat16, true}};
// The dtypes of reductions: only the first four choices, because gradients are reduced in float32
// or bfloat16.
constexpr std::span kReduceDTypes = std::span(kDTypes).first<4>();
constexpr std::array kRegistrations{Choice{"off", NcclRegistration::kOff},
                                    Choice{"windows", NcclRegistration::kWindows},
                                    Choice{"zero-cta", NcclRegistration::kZeroCta}};
constexpr std::array kLogLevels{Choice{"info", LogLevel::kInfo}, Choice{"debug", LogLevel::kDebug}};
constexpr std::array kOnSaveErrors{Choice{"stop", OnSaveError::kStop},
                                   Choice{"continue", OnSaveError::kContinue}};
constexpr std::array kAblations{Choice{"communication", true}};

// Returns the strategies under their own names and under those of other libraries. The result is
// static, because flags keep a span of it.
const std::vector<Choice<Strategy>>& strategy_choices() {
  static const auto choices = [] {
    std::vector<Choice<Strategy>> all;
    for (const StrategyRow& row : strategies()) {
      all.push_back({row.name, row.strategy});
      if (!row.other_name.empty()) all.push_back({row.other_name, row.strategy, true});
    }
    all.push_back({"fsdp", Strategy::kFullShard, true});
    return all;
  }();
  return choices;
}

// Returns "full-shard (ZeRO-3), zero2, …, or in groups of --shard ranks: hybrid-shard, …".
std::string meaning_of_strategies() {
  std::vector<std::string> alone, by_groups;
  for (const StrategyRow& row : strategies()) {
    (row.is_by_groups() ? by_groups : alone)
        .push_back(row.meaning.empty() ? std::string(row.name)
                                       : fmt::format("{} ({})", row.name, row.meaning));
  }
  return fmt::format("{}, or in groups of --shard ranks: {}", fmt::join(alone, ", "),
                     fmt::join(by_groups, ", "));
}

RunFlag timeout_flag(std::chrono::milliseconds& timeout) {
  constexpr double kMilliseconds = 1000;
  return {.name = "--timeout",
          .value_name = "SECONDS",
          .meaning = "seconds to wait for a rank before the job fails",
          .value = fmt::format("{}", static_cast<double>(timeout.count()) / kMilliseconds),
          .set = [&timeout](std::string_view value) {
            const double seconds = read_number("--timeout", value, 0.1, 1e6, "a number");
            timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * kMilliseconds));
          }};
}

RunFlag memory_limit_flag(int64_t& bytes) {
  // A small number without a unit is refused: it would be parsed as bytes, but the user probably
  // meant another unit.
  return {
      .name = "--memory-limit",
      .value_name = "BYTES",
      .meaning = "most that a rank may hold on its device, with LibTorch's tensors; 0: no limit",
      .value = bytes == 0 ? "0" : spell_bytes(bytes),
      .set = [&bytes](std::string_view value) {
        const std::optional<int64_t> given = parse_bytes(value);
        const std::string question = question_of_unit(value);
        if (!question.empty()) refuse_value("--memory-limit", value, question);
        if (!given) {
          refuse_value("--memory-limit", value,
                       "use a size like 16GiB (1024 MiB each), 500MB (1000 kB each) or 1073741824");
        }
        bytes = *given;
      }};
}

RunFlag trace_flag(std::filesystem::path& file) {
  return {.name = "--trace",
          .value_name = "FILE",
          .meaning = "write a trace of all ranks, for ui.perfetto.dev",
          .value = file.string(),
          .set = [&file](std::string_view value) {
            if (value.empty()) refuse_value("--trace", value, "use the name of a file");
            file = value;
          }};
}

}  // namespace

std::vector<RunFlag> RunOptions::engine_flags() {
  const auto choice = [](const char* name, const char* value_name, std::string meaning,
                         auto& target, const auto& choices) {
    return choice_flag({.name = name, .value_name = value_name, .meaning = std::move(meaning)},
                       target, std::span(choices));
  };
  RunFlag strategy =
      choice("--strategy", "NAME", meaning_of_strategies(), engine.strategy, strategy_choices());
  strategy.set = [this, set = std::move(strategy.set)](std::string_view value) {
    set(value);
    names_strategy = true;
  };
  return {
      choice("--device", "NAME", "device of the ranks: auto (GPUs, else the CPU), cpu, cuda",
             mesh.device, kDevices),
      std::move(strategy),
      count_flag("--shard", "ranks per group; 0: derived from --replicate", mesh.shard),
      count_flag("--replicate", "groups of ranks; 0: derived from --shard", mesh.replicate),
      choice("--param-dtype", "DTYPE", "type of forward and backward: float32, bfloat16, float16",
             engine.mixed_precision.param_dtype, kDTypes),
      with_value_unset(
          choice("--reduce-dtype", "DTYPE", "type of gradients between ranks: float32, bfloat16",
                 engine.mixed_precision.reduce_dtype, kReduceDTypes),
          "float32"),
      choice("--reshard-after-forward", "BOOL", "true: gather again in backward; false: keep",
             engine.reshard_after_forward, kBools),
      count_flag("--keep-last-units", "last units that stay gathered for backward",
                 engine.keep_last_units),
      count_flag("--prefetch", "units gathered ahead", engine.prefetch_units, /*most=*/1000),
      with_meaning_alone(
          count_flag("--recompute",
                     "1: backward recomputes each unit's activations; N: every N-th's",
                     engine.recompute),
          "1"),
      with_meaning_alone(
          choice("--offload", "BOOL", "true: main shards, gradients, optimizer state on the host",
                 engine.cpu_offload, kBools),
          "true"),
      with_meaning_alone(
          choice("--optimizer-in-backward", "BOOL", "true: backward updates each unit; no clipping",
                 engine.optimizer_in_backward, kBools),
          "true"),
      memory_limit_flag(engine.memory_limit),
      choice("--map-shards", "BOOL",
             "true: read peers' float32 shards in place; false: gather them",
             engine.tuning.map_shards, kBools),
      choice("--nccl-registration", "KIND",
             "slots registered with NCCL: off, windows, zero-cta (copy engines gather)",
             engine.tuning.nccl_registration, kRegistrations),
      timeout_flag(mesh.timeout)};
}

std::vector<RunFlag> RunOptions::diagnostic_flags() {
  return {trace_flag(trace_file),
          choice_flag({.name = "--ablate",
                       .value_name = "WHAT",
                       .meaning = "communication: time the same run without it; it learns nothing"},
                      ablate_communication, std::span(kAblations))};
}

std::vector<RunFlag> RunOptions::checkpoint_flags() {
  RunFlag resume{
      .name = "--resume",
      .value_name = "auto|none|DIR",
      .meaning =
          "auto: from the newest checkpoint of --save-dir, if there is one; DIR: "
          "from this one",
      .value = checkpoints.resume.empty() ? "none; auto after a restart" : checkpoints.resume,
      .alone = "auto",
      .set = [this](std::string_view value) {
        if (value.empty()) refuse_value("--resume", value, "use auto, none or a folder");
        checkpoints.resume = value;
      }};
  // Hugging Face's Trainer has this flag in place of --resume.
  RunFlag resume_from{.name = "--resume-from-checkpoint",
                      .value_name = "true|DIR",
                      .meaning = "the same as --resume; true means auto",
                      .value = {},
                      .alone = "true",
                      .set = [set = resume.set](std::string_view value) {
                        const std::string word = in_lower_case(value);
                        set(word == "true" ? "auto" : word == "false" ? "none" : value);
                      }};
  return {
      count_flag("--save-steps", "save a checkpoint after every N steps; 0: none",
                 checkpoints.save_steps, int64_t{1'000'000'000}),
      count_flag("--save-total-limit", "checkpoints to keep, 2 or more; 0: all",
                 checkpoints.save_total_limit, int64_t{1'000'000}),
      with_value_unset(folder_flag("--save-dir", "folder of the checkpoints", checkpoints.folder),
                       "OUTPUT/checkpoints"),
      std::move(resume),
      std::move(resume_from),
      switch_flag("--resume-weights-only", "true: resume loads weights only, at step 0",
                  checkpoints.resume_weights_only),
      count_flag("--save-memory-steps",
                 "copy the state to the launcher's memory, so that a restart loses at most N steps "
                 "(fsdp-run --max-restarts); 0: never",
                 checkpoints.save_memory_steps, int64_t{1'000'000'000}),
      switch_flag("--save-async",
                  "true: write checkpoints while the training continues; needs host memory for a "
                  "copy of the state",
                  checkpoints.save_async),
      switch_flag("--save-only-model", "true: checkpoints have weights and buffers only",
                  checkpoints.save_only_model),
      choice_flag({.name = "--on-save-error",
                   .value_name = "NAME",
                   .meaning = "if a checkpoint cannot be written: stop or continue"},
                  checkpoints.on_save_error, std::span(kOnSaveErrors))};
}

std::vector<RunFlag> RunOptions::plan_flags() {
  RunFlag flag =
      choice_flag({.name = "--force",
                   .value_name = "BOOL",
                   .meaning = "true: run even if the plan says that a step does not fit"},
                  force, std::span(kBools));
  // The engine, too, refuses a model if its plan for a step exceeds the memory limit. So --force
  // must disable the program's check and the engine's check.
  flag.set = [this, set = std::move(flag.set)](std::string_view value) {
    set(value);
    engine.try_beyond_plan = force;
  };
  return {with_meaning_alone(std::move(flag), "true"),
          choice_flag({.name = "--log-level",
                       .value_name = "NAME",
                       .meaning = "info: a step's costs in a line; debug: in tables, by unit"},
                      log_level, std::span(kLogLevels))};
}

}  // namespace fsdp
