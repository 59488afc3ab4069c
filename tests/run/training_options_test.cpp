#include "fsdp/training_options.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "fsdp/run_options.h"
#include "support/source_tree.h"

namespace fsdp {
namespace {

using Flags = std::vector<std::string>;
constexpr ProgramFlags kAll{.trains = true, .evaluates = true};
constexpr std::array<std::string_view, 2> kMetrics{"accuracy", "loss"};

RunOptions parse_all(const Flags& words, RunOptions defaults = {}) {
  std::vector<const char*> arguments{"train"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return RunOptions::parse(static_cast<int>(arguments.size()), arguments.data(), kAll,
                           std::move(defaults));
}

// Returns the error text of a call that must refuse a command line.
std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "(accepted)";
}

std::string refusal_of_schedule(const Flags& words, RunOptions defaults = {}) {
  return text_of([&] { parse_all(words, std::move(defaults)).schedule.require_valid(1e-3); });
}

std::string refusal_of_evaluation(const Flags& words) {
  return text_of([&] { parse_all(words).evaluation.resolve(kMetrics); });
}

TEST_CASE("each schedule has the rates of transformers' schedule of this name") {
  std::ifstream file(source_file("tests/run/records/lr_schedules.txt"));
  std::string line;
  std::getline(file, line);  // the version of transformers
  int cases = 0;
  while (std::getline(file, line)) {
    CAPTURE(line);
    std::istringstream words(line);
    std::string word, type, warmup, kwargs;
    int64_t total = 0;
    double lr = 0;
    words >> word >> type >> warmup >> total >> lr >> kwargs;
    REQUIRE(word == "case");
    Flags flags{"--lr-scheduler-type", type, "--lr-scheduler-kwargs", kwargs};
    if (warmup != "0") flags.insert(flags.end(), {"--warmup-steps", warmup});
    const LrSchedule schedule = parse_all(flags).schedule.make(total, lr);
    std::getline(file, line);
    std::istringstream rates(line);
    // Beyond the last step, transformers continues the wave of a cosine, which is never used.
    const int64_t compared = type.starts_with("cosine") ? total + 1 : total + 5;
    int64_t step = 0;
    for (; rates >> word && step < compared; ++step) {
      CAPTURE(step);
      const double rate = std::strtod(word.c_str(), nullptr);
      CHECK(lr * schedule.factor(step) == doctest::Approx(rate).epsilon(1e-13).scale(lr));
    }
    CHECK(step == compared);
    ++cases;
  }
  CHECK(cases == 17);
}

TEST_CASE("the warm-up is a number of steps, or a part of all steps") {
  const auto warmup = [](const Flags& words, RunOptions defaults = {}) {
    return parse_all(words, std::move(defaults)).schedule.make(45, 1e-3).warmup_steps;
  };
  CHECK(warmup({}) == 0);
  CHECK(warmup({"--warmup-steps", "7"}) == 7);
  CHECK(warmup({"--warmup-steps=1"}) == 1);
  CHECK(warmup({"--warmup_steps", "0.1"}) == 5);  // rounded up
  CHECK(warmup({"--warmup-ratio", "0.1"}) == 5);
  CHECK(warmup({"--warmup-ratio", "0.1", "--warmup-steps", "3"}) == 3);
  const RunOptions defaults{.schedule = {.warmup_ratio = 0.2}};
  CHECK(warmup({}, defaults) == 9);
  CHECK(warmup({"--warmup-ratio", "0"}, defaults) == 0);
  // A program's default does not apply to a schedule without warm-up; a flag is refused.
  CHECK(warmup({"--lr-scheduler-type", "constant"}, defaults) == 0);
  CHECK(refusal_of_schedule({"--lr-scheduler-type", "constant", "--warmup-ratio", "0.1"}) ==
        "--lr-scheduler-type constant has no warm-up; hint: use constant_with_warmup, or leave the "
        "warm-up out");
}

TEST_CASE("a schedule that cannot be is refused in one line") {
  const auto refused = [](const Flags& words, const std::string& text) {
    CAPTURE(words.back());
    CHECK(refusal_of_schedule(words) == text);
  };
  refused({"--lr-scheduler-type", "cosin"},
          "--lr-scheduler-type cannot be 'cosin'; hint: use linear, cosine, constant, "
          "constant_with_warmup, polynomial, inverse_sqrt, cosine_with_min_lr or "
          "warmup_stable_decay");
  refused({"--warmup-steps", "1.5"},
          "--warmup-steps cannot be '1.5'; hint: use a whole number of steps, or a part of all "
          "steps below 1");
  refused({"--warmup-steps", "-1"},
          "--warmup-steps cannot be '-1'; hint: use a number of steps from 0 to 1000000000");
  refused({"--warmup-ratio", "2"}, "--warmup-ratio cannot be '2'; hint: use a number from 0 to 1");
  for (const char* value : {"x", "[1]", R"({"a":[]})", R"({"a":true})", ""}) {
    refused({"--lr-scheduler-kwargs", value},
            std::string("--lr-scheduler-kwargs cannot be '") + value +
                R"('; hint: use a JSON object of numbers and names, like {"min_lr": 1e-6})");
  }
  refused({"--lr-scheduler-kwargs", R"({"min_lr":1})"},
          "--lr-scheduler-kwargs: the schedule has no argument min_lr; hint: leave "
          "--lr-scheduler-kwargs out");
  refused({"--lr-scheduler-type", "polynomial", "--lr-scheduler-kwargs", R"({"end":1})"},
          "--lr-scheduler-kwargs: the schedule has no argument end; hint: use power, lr_end");
  refused({"--lr-scheduler-type", "polynomial", "--lr-scheduler-kwargs", R"({"power":"two"})"},
          "--lr-scheduler-kwargs: power cannot be two; hint: use a number from 0 to 1000000");
  refused(
      {"--lr-scheduler-type", "polynomial", "--lr-scheduler-kwargs", R"({"lr_end":0.1})"},
      "--lr-scheduler-kwargs: lr_end is 0.1, --learning-rate is 0.001; hint: use a lr_end below "
      "--learning-rate");
  refused({"--lr-scheduler-type", "cosine_with_min_lr"},
          "--lr-scheduler-type cosine_with_min_lr has no minimum; hint: set one of them: "
          R"(--lr-scheduler-kwargs '{"min_lr": X}' or '{"min_lr_rate": X}')");
  refused({"--lr-scheduler-type", "warmup_stable_decay"},
          "--lr-scheduler-type warmup_stable_decay has no num_decay_steps; hint: add "
          R"(--lr-scheduler-kwargs '{"num_decay_steps": N}')");
  refused({"--lr-scheduler-type", "warmup_stable_decay", "--lr-scheduler-kwargs",
           R"({"num_decay_steps":9,"decay_type":"steep"})"},
          "--lr-scheduler-kwargs: decay_type cannot be steep; hint: use linear, cosine or 1-sqrt");
  refused({"--lr-scheduler-type", "inverse_sqrt", "--lr-scheduler-kwargs", R"({"timescale":1.5})"},
          "--lr-scheduler-kwargs: timescale cannot be 1.5; hint: use a whole number");
  CHECK(text_of([] {
          parse_all({"--lr-scheduler-type", "warmup_stable_decay", "--warmup-steps", "20",
                     "--lr-scheduler-kwargs", R"({"num_decay_steps":21})"})
              .schedule.make(40, 1e-3);
        }) ==
        "20 steps of warm-up and 21 of decay are more than the run's 40; hint: lower "
        "--warmup-steps or num_decay_steps");
}

TEST_CASE("evaluations are due after steps or epochs, and the metric says what is better") {
  const auto resolved = [](const Flags& words) {
    EvaluationOptions options = parse_all(words).evaluation;
    options.resolve(kMetrics);
    return options;
  };
  const EvaluationOptions never = resolved({});
  CHECK_FALSE(never.is_due(10, true));
  CHECK(never.metric_for_best_model == "accuracy");
  CHECK(never.greater_is_better == true);
  const EvaluationOptions steps =
      resolved({"--eval-strategy", "steps", "--eval-steps", "5", "--metric-for-best-model",
                "eval_loss", "--load-best-model-at-end", "--early-stopping-patience", "2",
                "--early-stopping-threshold", "0.5"});
  CHECK(steps.is_due(10, false));
  CHECK_FALSE(steps.is_due(11, true));
  CHECK(steps.metric_for_best_model == "loss");
  CHECK(steps.greater_is_better == false);
  CHECK(steps.load_best_model_at_end == true);
  CHECK(steps.early_stopping_patience == 2);
  CHECK(steps.early_stopping_threshold == 0.5);
  const EvaluationOptions epochs = resolved({"--eval-strategy=epoch", "--greater_is_better=false"});
  CHECK(epochs.is_due(11, true));
  CHECK_FALSE(epochs.is_due(10, false));
  CHECK(epochs.greater_is_better == false);
}

TEST_CASE("flags of evaluation that do not fit together are refused in one line") {
  const auto refused = [](const Flags& words, const std::string& text) {
    CAPTURE(words.front());
    CHECK(refusal_of_evaluation(words) == text);
  };
  const std::string both =
      "--eval-strategy steps and --eval-steps need each other; hint: add --eval-strategy steps "
      "--eval-steps N, or leave both out";
  refused({"--eval-steps", "5"}, both);
  refused({"--eval-strategy", "steps"}, both);
  refused({"--eval-strategy", "epoch", "--eval-steps", "5"}, both);
  for (const Flags& words :
       {Flags{"--load-best-model-at-end"}, Flags{"--metric-for-best-model", "loss"},
        Flags{"--greater-is-better"}, Flags{"--early-stopping-patience", "1"}}) {
    refused(words, words.front() +
                       " needs evaluations during training; hint: add --eval-strategy epoch, or "
                       "steps with --eval-steps N");
  }
  refused({"--eval-strategy", "epoch", "--early-stopping-threshold", "1"},
          "--early-stopping-threshold needs --early-stopping-patience; hint: add "
          "--early-stopping-patience N");
  refused({"--eval-strategy", "epoch", "--metric-for-best-model", "f2"},
          "--metric-for-best-model cannot be 'f2'; hint: use accuracy or loss");
  refused({"--eval-strategy", "often"},
          "--eval-strategy cannot be 'often'; hint: use no, steps or epoch");
}

TEST_CASE("event files are written into --logging-dir, TENSORBOARD_LOGGING_DIR or OUTPUT/runs") {
  constexpr const char* kVariable = "TENSORBOARD_LOGGING_DIR";
  ::unsetenv(kVariable);
  const auto folder = [](const Flags& words, const char* output) {
    return parse_all(words).reports.event_folder(output).string();
  };
  const Flags on{"--report-to", "tensorboard"};
  const Flags named{"--report-to", "tensorboard", "--logging-dir", "logs"};
  CHECK(folder({}, "out").empty());
  CHECK(folder(on, "out") == "out/runs");
  CHECK(folder(named, "out") == "logs");
  CHECK(text_of([&] { folder(on, ""); }) ==
        "--report-to tensorboard has no folder; hint: add --logging-dir DIR or --output-dir DIR");
  CHECK(text_of([&] {
          folder({"--logging-dir", "logs"}, "out");
        }) == "--logging-dir needs --report-to tensorboard; hint: add --report-to tensorboard");
  CHECK(text_of([&] {
          folder({"--report-to", "wandb"}, "out");
        }) == "--report-to cannot be 'wandb'; hint: use none or tensorboard");
  ::setenv(kVariable, "/elsewhere", 1);
  CHECK(folder(on, "out") == "/elsewhere");
  CHECK(folder(named, "out") == "logs");
  CHECK(folder({}, "out").empty());
  ::unsetenv(kVariable);
}

}  // namespace
}  // namespace fsdp
