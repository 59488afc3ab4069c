#include "fsdp/training_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse_training_option(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .hint = std::move(hint)}, ExitCode::kUsage);
}

// Reads the arguments of --lr-scheduler-kwargs, and refuses those that the schedule does not have.
class SchedulerArguments {
 public:
  explicit SchedulerArguments(const ScheduleOptions& options) : left_(options.arguments) {}

  // Returns the argument, or nothing if it is not given.
  std::optional<double> number(const char* name, double least, double most) {
    known_.emplace_back(name);
    const auto found = left_.extract(name);
    if (found.empty()) return std::nullopt;
    const std::string& text = found.mapped();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() ||
        !(value >= least && value <= most)) {
      refuse_training_option(fmt::format("--lr-scheduler-kwargs: {} cannot be {}", name, text),
                             fmt::format("use a number from {} to {}", least, most));
    }
    return value;
  }
  std::optional<int64_t> count(const char* name) {
    const std::optional<double> value = number(name, 1, 1e9);
    if (!value) return std::nullopt;
    if (*value != std::floor(*value)) {
      refuse_training_option(fmt::format("--lr-scheduler-kwargs: {} cannot be {}", name, *value),
                             "use a whole number");
    }
    return static_cast<int64_t>(*value);
  }
  LrSchedule::Curve curve(const char* name, LrSchedule::Curve otherwise) {
    using Curve = LrSchedule::Curve;
    known_.emplace_back(name);
    const auto found = left_.extract(name);
    if (found.empty()) return otherwise;
    if (found.mapped() == "linear") return Curve::kLinear;
    if (found.mapped() == "cosine") return Curve::kCosine;
    if (found.mapped() == "1-sqrt") return Curve::kOneMinusSqrt;
    refuse_training_option(
        fmt::format("--lr-scheduler-kwargs: {} cannot be {}", name, found.mapped()),
        "use linear, cosine or 1-sqrt");
  }
  // Throws if an argument was not read.
  void finish() const {
    if (left_.empty()) return;
    refuse_training_option(
        fmt::format("--lr-scheduler-kwargs: the schedule has no argument {}", left_.begin()->first),
        known_.empty() ? "leave --lr-scheduler-kwargs out"
                       : fmt::format("use {}", fmt::join(known_, ", ")));
  }

 private:
  std::map<std::string, std::string, std::less<>> left_;
  std::vector<std::string> known_;
};

// Returns the factor of a final rate, which must be below the learning rate.
double factor_of(const char* name, double lr, double learning_rate) {
  if (lr < learning_rate) return lr / learning_rate;
  refuse_training_option(fmt::format("--lr-scheduler-kwargs: {} is {}, --learning-rate is {}", name,
                                     lr, learning_rate),
                         fmt::format("use a {} below --learning-rate", name));
}

int64_t steps_of(double part, int64_t total_steps) {
  return static_cast<int64_t>(std::ceil(part * static_cast<double>(total_steps)));
}

}  // namespace

LrSchedule ScheduleOptions::make(int64_t total_steps, double learning_rate) const {
  using Shape = LrSchedule::Shape;
  LrSchedule made{.total_steps = total_steps};
  made.warmup_steps = warmup_steps >= 1  ? static_cast<int64_t>(warmup_steps)
                      : warmup_steps > 0 ? steps_of(warmup_steps, total_steps)
                                         : steps_of(warmup_ratio, total_steps);
  SchedulerArguments given(*this);
  const auto cycles = [&] { return given.number("num_cycles", 0, 1e6).value_or(0.5); };
  switch (type) {
    case LrSchedulerType::kLinear:
      break;
    case LrSchedulerType::kCosine:
      made.shape = Shape::kCosine;
      made.cycles = cycles();
      break;
    case LrSchedulerType::kConstant:
      made.shape = Shape::kConstant;
      if (has_warmup_flag && warmup_steps + warmup_ratio > 0) {
        refuse_training_option("--lr-scheduler-type constant has no warm-up",
                               "use constant_with_warmup, or leave the warm-up out");
      }
      made.warmup_steps = 0;
      break;
    case LrSchedulerType::kConstantWithWarmup:
      made.shape = Shape::kConstant;
      break;
    case LrSchedulerType::kPolynomial:
      made.shape = Shape::kPolynomial;
      made.power = given.number("power", 0, 1e6).value_or(1.0);
      made.min_factor =
          factor_of("lr_end", given.number("lr_end", 0, 1e9).value_or(1e-7), learning_rate);
      break;
    case LrSchedulerType::kInverseSqrt:
      made.shape = Shape::kInverseSqrt;
      made.timescale = given.count("timescale").value_or(0);
      break;
    case LrSchedulerType::kCosineWithMinLr: {
      made.shape = Shape::kCosine;
      made.cycles = cycles();
      const std::optional<double> rate = given.number("min_lr", 0, 1e9),
                                  factor = given.number("min_lr_rate", 0, 1);
      if (rate.has_value() == factor.has_value()) {
        refuse_training_option(
            fmt::format("--lr-scheduler-type cosine_with_min_lr has {}",
                        rate ? "two minima" : "no minimum"),
            R"(set one of them: --lr-scheduler-kwargs '{"min_lr": X}' or '{"min_lr_rate": X}')");
      }
      made.min_factor = rate ? factor_of("min_lr", *rate, learning_rate) : *factor;
      break;
    }
    case LrSchedulerType::kWarmupStableDecay: {
      made.shape = Shape::kWarmupStableDecay;
      made.cycles = cycles();
      made.min_factor = given.number("min_lr_ratio", 0, 1).value_or(0.0);
      made.warmup = given.curve("warmup_type", LrSchedule::Curve::kLinear);
      made.decay = given.curve("decay_type", LrSchedule::Curve::kCosine);
      const std::optional<int64_t> decay = given.count("num_decay_steps");
      if (!decay) {
        refuse_training_option("--lr-scheduler-type warmup_stable_decay has no num_decay_steps",
                               R"(add --lr-scheduler-kwargs '{"num_decay_steps": N}')");
      }
      made.decay_steps = *decay;
      if (made.warmup_steps + made.decay_steps > total_steps) {
        refuse_training_option(
            fmt::format("{} steps of warm-up and {} of decay are more than the run's {}",
                        made.warmup_steps, made.decay_steps, total_steps),
            "lower --warmup-steps or num_decay_steps");
      }
      break;
    }
  }
  given.finish();
  return made;
}

void ScheduleOptions::require_valid(double learning_rate) const {
  constexpr auto kEnough = int64_t{1} << 40;
  make(kEnough, learning_rate);
}

void EvaluationOptions::resolve(std::span<const std::string_view> metrics) {
  std::string& metric = metric_for_best_model;
  const auto refuse_without_strategy = [&](bool is_given, const char* flag) {
    if (is_given && strategy == EvalStrategy::kNo) {
      refuse_training_option(fmt::format("{} needs evaluations during training", flag),
                             "add --eval-strategy epoch, or steps with --eval-steps N");
    }
  };
  refuse_without_strategy(load_best_model_at_end.value_or(false), "--load-best-model-at-end");
  refuse_without_strategy(!metric.empty(), "--metric-for-best-model");
  refuse_without_strategy(greater_is_better.has_value(), "--greater-is-better");
  refuse_without_strategy(early_stopping_patience > 0, "--early-stopping-patience");
  if (early_stopping_threshold > 0 && early_stopping_patience == 0) {
    refuse_training_option("--early-stopping-threshold needs --early-stopping-patience",
                           "add --early-stopping-patience N");
  }
  if ((eval_steps > 0) != (strategy == EvalStrategy::kSteps)) {
    refuse_training_option("--eval-strategy steps and --eval-steps need each other",
                           "add --eval-strategy steps --eval-steps N, or leave both out");
  }
  constexpr std::string_view kPrefix = "eval_";
  if (metric.starts_with(kPrefix)) metric.erase(0, kPrefix.size());
  if (metric.empty()) metric = metrics.front();
  if (std::ranges::find(metrics, metric) == metrics.end()) {
    refuse_training_option(fmt::format("--metric-for-best-model cannot be '{}'", metric),
                           fmt::format("use {}", fmt::join(metrics, " or ")));
  }
  if (!greater_is_better) greater_is_better = !metric.ends_with("loss");
}

bool EvaluationOptions::is_due(int64_t step, bool ends_epoch) const {
  switch (strategy) {
    case EvalStrategy::kNo:
      return false;
    case EvalStrategy::kSteps:
      return step % eval_steps == 0;
    case EvalStrategy::kEpoch:
      return ends_epoch;
  }
  return false;  // unreachable: every strategy returns
}

std::filesystem::path ReportOptions::event_folder(const std::filesystem::path& output) const {
  if (!tensorboard) {
    if (logging_dir.empty()) return {};
    refuse_training_option("--logging-dir needs --report-to tensorboard",
                           "add --report-to tensorboard");
  }
  if (!logging_dir.empty()) return logging_dir;
  const char* const folder = std::getenv("TENSORBOARD_LOGGING_DIR");
  if (folder != nullptr && *folder != '\0') return folder;
  if (!output.empty()) return output / "runs";
  refuse_training_option("--report-to tensorboard has no folder",
                         "add --logging-dir DIR or --output-dir DIR");
}

}  // namespace fsdp
