#include "bert_qa/run/task_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "bert_qa/run/settings_checks.h"

namespace bert_qa {
namespace {

const std::map<std::string, Task> kTasks = {{"squad", Task::kSquad}, {"nq", Task::kNq}};

// The flags that only one task has.
const std::map<std::string, Task> kFlagsOfTasks = {
    {"--version-2-with-negative", Task::kSquad}, {"--null-score-diff-threshold", Task::kSquad},
    {"--max-query-length", Task::kNq},           {"--max-contexts", Task::kNq},
    {"--include-unknowns", Task::kNq},           {"--long-non-null-threshold", Task::kNq},
    {"--short-non-null-threshold", Task::kNq},
};

bool is_given(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

}  // namespace

void add_task_flag(CLI::App& group, Settings& settings) {
  group
      .add_option_function<std::string>(
          "--task", [&settings](const std::string& name) { settings.task = kTasks.at(name); },
          "squad, or nq: Natural Questions, with answer types, --max-seq-length 512 and "
          "--n-best-size 10")
      ->check(CLI::IsMember(kTasks).description(""))
      ->type_name("NAME")
      ->default_str("squad");
}

void add_nq_data_flags(CLI::App& group, Command command, Settings& settings) {
  DataSettings& data = settings.data;
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 20);
  group.add_option("--max-query-length", data.max_query_length, "nq: last tokens of a question")
      ->check(positive);
  group.add_option("--max-contexts", data.max_contexts, "nq: candidates of a page, plus 1")
      ->check(positive);
  if (command != Command::kFinetune) return;
  group
      .add_option("--include-unknowns", data.include_unknowns,
                  "nq: probability of a training window without the answer")
      ->check(CLI::Range(0.0, 1.0).description(""));
}

void add_nq_answer_flags(CLI::App& group, Settings& settings) {
  AnswerSettings& answers = settings.answers;
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 20);
  group
      .add_option("--long-non-null-threshold", answers.long_non_null_threshold,
                  "nq: annotators that must have a long answer")
      ->check(positive);
  group
      .add_option("--short-non-null-threshold", answers.short_non_null_threshold,
                  "nq: annotators that must have a short answer")
      ->check(positive);
}

void apply_task(const CLI::App& command, Settings& settings) {
  for (const auto& [flag, task] : kFlagsOfTasks) {
    if (task == settings.task || !is_given(command, flag)) continue;
    refuse(fmt::format("{} is not a flag of --task {}", flag,
                       settings.task == Task::kNq ? "nq" : "squad"),
           fmt::format("leave it out, or use --task {}", task == Task::kNq ? "nq" : "squad"));
  }
  if (settings.task != Task::kNq) return;
  // The values of the baseline.
  if (!is_given(command, "--max-seq-length")) settings.data.max_seq_length = 512;
  if (!is_given(command, "--n-best-size")) settings.answers.n_best_size = 10;
}

}  // namespace bert_qa
