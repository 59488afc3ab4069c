// The flags of training_options.h.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "run/flag_kinds.h"

namespace fsdp {
namespace {

constexpr std::array kSchedulers{
    Choice{"linear", LrSchedulerType::kLinear},
    Choice{"cosine", LrSchedulerType::kCosine},
    Choice{"constant", LrSchedulerType::kConstant},
    Choice{"constant_with_warmup", LrSchedulerType::kConstantWithWarmup},
    Choice{"polynomial", LrSchedulerType::kPolynomial},
    Choice{"inverse_sqrt", LrSchedulerType::kInverseSqrt},
    Choice{"cosine_with_min_lr", LrSchedulerType::kCosineWithMinLr},
    Choice{"warmup_stable_decay", LrSchedulerType::kWarmupStableDecay}};
constexpr std::array kEvalStrategies{Choice{"no", EvalStrategy::kNo},
                                     Choice{"steps", EvalStrategy::kSteps},
                                     Choice{"epoch", EvalStrategy::kEpoch}};
constexpr std::array kReports{Choice{"none", false}, Choice{"tensorboard", true}};
constexpr auto kMostSteps = int64_t{1'000'000'000};

// Returns the flag. If it is set, `is_given` becomes true.
RunFlag noted(RunFlag flag, bool& is_given) {
  flag.set = [set = std::move(flag.set), &is_given](std::string_view value) {
    set(value);
    is_given = true;
  };
  return flag;
}

std::map<std::string, std::string, std::less<>> read_arguments(std::string_view flag,
                                                               std::string_view text) {
  constexpr const char* kForm = R"(use a JSON object of numbers and names, like {"min_lr": 1e-6})";
  std::map<std::string, std::string, std::less<>> arguments;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse_value(flag, text, kForm);
  for (const auto& [name, value] : json.items()) {
    if (!value.is_number() && !value.is_string()) refuse_value(flag, text, kForm);
    arguments[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return arguments;
}

RunFlag whole_if_above_one(RunFlag flag, double& steps) {
  flag.set = [name = flag.name, &steps](std::string_view value) {
    const auto number =
        read_number(name, value, 0.0, static_cast<double>(kMostSteps), "a number of steps");
    if (number > 1 && number != static_cast<double>(static_cast<int64_t>(number))) {
      refuse_value(name, value, "use a whole number of steps, or a part of all steps below 1");
    }
    steps = number;
  };
  return flag;
}

}  // namespace

std::vector<RunFlag> RunOptions::schedule_flags() {
  RunFlag kwargs{
      .name = "--lr-scheduler-kwargs",
      .value_name = "JSON",
      .meaning = R"(arguments of the schedule: {"min_lr": X}, {"num_decay_steps": N}, …)",
      .value = {},
      .set = [this](std::string_view value) {
        schedule.arguments = read_arguments("--lr-scheduler-kwargs", value);
      }};
  return {
      choice_flag({.name = "--lr-scheduler-type",
                   .value_name = "NAME",
                   .meaning = "schedule of the learning rate: " + names_of(std::span(kSchedulers))},
                  schedule.type, std::span(kSchedulers)),
      noted(whole_if_above_one({.name = "--warmup-steps",
                                .value_name = "N",
                                .meaning = "steps of the warm-up; below 1: a part of all steps",
                                .value = fmt::format("{}", schedule.warmup_steps)},
                               schedule.warmup_steps),
            schedule.has_warmup_flag),
      noted(number_flag("--warmup-ratio", "the same as a part of all steps, if --warmup-steps is 0",
                        schedule.warmup_ratio, 1.0),
            schedule.has_warmup_flag),
      std::move(kwargs)};
}

std::vector<RunFlag> RunOptions::evaluation_flags() {
  RunFlag metric{
      .name = "--metric-for-best-model",
      .value_name = "NAME",
      .meaning = "metric by which models are compared",
      .value = evaluation.metric_for_best_model,
      .set = [this](std::string_view value) { evaluation.metric_for_best_model = value; }};
  return {
      choice_flag({.name = "--eval-strategy",
                   .value_name = "NAME",
                   .meaning = "evaluate during training: no, every --eval-steps steps, each epoch"},
                  evaluation.strategy, std::span(kEvalStrategies)),
      count_flag("--eval-steps", "steps between evaluations of --eval-strategy steps",
                 evaluation.eval_steps, kMostSteps),
      switch_flag("--load-best-model-at-end", "true: the result is the best evaluated model",
                  evaluation.load_best_model_at_end),
      std::move(metric),
      switch_flag("--greater-is-better",
                  "true: the best metric is the greatest; unset: unless it is a loss",
                  evaluation.greater_is_better),
      count_flag("--early-stopping-patience",
                 "evaluations without an improvement that end the training; 0: never",
                 evaluation.early_stopping_patience, kMostSteps),
      number_flag("--early-stopping-threshold",
                  "change of the metric that does not count as an improvement",
                  evaluation.early_stopping_threshold, 1e30)};
}

std::vector<RunFlag> RunOptions::report_flags() {
  return {choice_flag({.name = "--report-to",
                       .value_name = "NAME",
                       .meaning = "none, or tensorboard: write event files"},
                      reports.tensorboard, std::span(kReports)),
          with_value_unset(
              folder_flag("--logging-dir", "folder of the event files", reports.logging_dir),
              "$TENSORBOARD_LOGGING_DIR, else OUTPUT/runs")};
}

}  // namespace fsdp
