// Options that training programs share, and their flags: the schedule of the learning rate,
// evaluation during training, and reports. Names and defaults are those of Hugging Face's Trainer.
#pragma once

#include <fsdp/lr_schedule.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

enum class LrSchedulerType : uint8_t {
  kLinear,
  kCosine,
  kConstant,
  kConstantWithWarmup,
  kPolynomial,
  kInverseSqrt,
  kCosineWithMinLr,
  kWarmupStableDecay,
};

// The schedule of the learning rate.
struct ScheduleOptions {
  LrSchedulerType type = LrSchedulerType::kLinear;  // --lr-scheduler-type
  // --warmup-steps: a number of steps, or, below 1, a part of all steps. 0: the ratio counts.
  double warmup_steps = 0;
  double warmup_ratio = 0;       // --warmup-ratio: a part of all steps, rounded up
  bool has_warmup_flag = false;  // a flag of the command line has set one of them
  // --lr-scheduler-kwargs: the arguments of transformers' get_…_schedule functions, by name.
  std::map<std::string, std::string, std::less<>> arguments{};

  // Returns the schedule of a run with `total_steps` steps and the peak `learning_rate`.
  // Errors: InvalidArgument (64) for values that do not fit together. The error names the flag.
  LrSchedule make(int64_t total_steps, double learning_rate) const;
  // Throws the errors of make() that do not depend on the number of steps.
  void require_valid(double learning_rate) const;
};

enum class EvalStrategy : uint8_t { kNo, kSteps, kEpoch };

// Evaluation during training. best_model.h uses these options.
struct EvaluationOptions {
  EvalStrategy strategy = EvalStrategy::kNo;     // --eval-strategy
  int64_t eval_steps = 0;                        // --eval-steps: steps between evaluations
  std::optional<bool> load_best_model_at_end{};  // --load-best-model-at-end
  std::string metric_for_best_model{};           // --metric-for-best-model
  std::optional<bool> greater_is_better{};       // --greater-is-better
  int64_t early_stopping_patience = 0;           // --early-stopping-patience; 0: never stop
  double early_stopping_threshold = 0;           // --early-stopping-threshold

  // Sets the values that are unset. `metrics` are the metrics that the program computes; the first
  // one is the default. The prefix "eval_" of a metric is removed. A metric is better if it is
  // greater, unless its name ends with "loss".
  // Errors: InvalidArgument (64) for values that do not fit together, and for another metric. The
  //   error names the flag.
  void resolve(std::span<const std::string_view> metrics);
  // Returns true if the program must evaluate after this number of steps.
  bool is_due(int64_t step, bool ends_epoch) const;
};

// Reports for other programs.
struct ReportOptions {
  bool tensorboard = false;             // --report-to tensorboard: write event files (event_log.h)
  std::filesystem::path logging_dir{};  // --logging-dir; TENSORBOARD_LOGGING_DIR

  // Returns the folder of the event files: logging_dir, else the value of TENSORBOARD_LOGGING_DIR,
  // else OUTPUT/runs. Empty without --report-to tensorboard.
  // Errors: InvalidArgument (64) if there is no folder, or a folder without --report-to.
  std::filesystem::path event_folder(const std::filesystem::path& output) const;
};

}  // namespace fsdp
