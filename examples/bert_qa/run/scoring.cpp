#include "bert_qa/run/scoring.h"

#include <fmt/format.h>
#include <fsdp/agreement.h>

#include <nlohmann/json.hpp>

#include "bert_qa/run/say.h"
#include "bert_qa/run/synthetic_task.h"

namespace bert_qa {

using nlohmann::ordered_json;

std::vector<std::string_view> metric_names(Task task) {
  if (task == Task::kNq) return {"long-best-threshold-f1", "short-best-threshold-f1"};
  return {"f1", "exact_match"};
}

std::vector<std::string_view> metrics_of(const Settings& settings) {
  if (settings.data.source == DataSource::kLearnable) return {"exact_match"};
  if (settings.data.validation_file.empty()) return {};
  return metric_names(settings.task);
}

std::optional<ordered_json> score_model(const Scoring& scoring, const Evaluation& evaluation) {
  const Settings& settings = scoring.settings;
  if (scoring.questions == nullptr) {
    if (settings.data.source != DataSource::kLearnable) return ordered_json::object();
    return score_synthetic(settings, scoring.model, scoring.engine, scoring.config, evaluation);
  }
  const std::optional<Answered> answered =
      answer(scoring.model, scoring.engine, *scoring.questions, settings.answers, evaluation);
  if (!answered) return std::nullopt;
  const fsdp::Mesh& mesh = scoring.engine.mesh();
  std::string of_rank_zero;
  fsdp::run_or_throw_on_all_ranks(mesh, "scoring the answers", [&] {
    if (mesh.rank() != 0) return;
    of_rank_zero = answered->answers->score().dump();
  });
  return ordered_json::parse(mesh.exchange("scores", of_rank_zero).front());
}

std::optional<ordered_json> answer_questions(const Scoring& scoring,
                                             const std::filesystem::path& folder,
                                             const Evaluation& evaluation) {
  const auto& [settings, model, engine, config, questions] = scoring;
  const fsdp::Mesh& mesh = engine.mesh();
  const std::optional<Answered> answered =
      answer(model, engine, *questions, settings.answers, evaluation);
  if (!answered) return std::nullopt;
  ordered_json metrics = {{"eval_samples", questions->question_count()},
                          {"eval_runtime", answered->seconds}};
  fsdp::run_or_throw_on_all_ranks(mesh, "writing the answers", [&] {
    if (mesh.rank() != 0) return;
    const Answers& answers = *answered->answers;
    if (scoring.settings.command != Command::kPredict) metrics.update(answers.score());
    if (!folder.empty()) answers.write(folder);
    say(evaluation.console, "\n{}", answers.some());
  });
  return metrics;
}

std::string scores_text(const ordered_json& metrics, std::string_view end) {
  std::string text;
  const auto add = [&](const char* name, const char* shown, double unit) {
    if (!metrics.contains(name)) return;
    text += fmt::format("{}{} {:.2f}{}", text.empty() || !end.empty() ? "" : ", ", shown,
                        unit * metrics[name].get<double>(), end);
  };
  constexpr double kPercent = 100;  // nq_eval returns fractions
  add("exact_match", "exact match", 1);
  add("f1", "F1", 1);
  add("long-best-threshold-f1", "long answer F1", kPercent);
  add("short-best-threshold-f1", "short answer F1", kPercent);
  return text;
}

}  // namespace bert_qa
