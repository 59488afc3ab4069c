#include "bert_qa/run/scoring.h"

#include <fmt/format.h>
#include <fsdp/agreement.h>

#include <nlohmann/json.hpp>

#include "bert_qa/run/say.h"
#include "bert_qa/run/synthetic_task.h"

namespace bert_qa {

using nlohmann::ordered_json;

std::vector<std::string_view> metrics_of(const Settings& settings) {
  if (settings.data.source == DataSource::kLearnable) return {"exact_match"};
  if (settings.data.validation_file.empty()) return {};
  return {"f1", "exact_match"};
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
    of_rank_zero = score(*scoring.questions, *answered, settings.answers).dump();
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
  ordered_json metrics = {{"eval_samples", questions->dataset.questions.size()},
                          {"eval_runtime", answered->seconds}};
  fsdp::run_or_throw_on_all_ranks(mesh, "writing the answers", [&] {
    if (mesh.rank() != 0) return;
    if (scoring.settings.command != Command::kPredict) {
      metrics.update(score(*scoring.questions, *answered, scoring.settings.answers));
    }
    if (!folder.empty()) write_answers(*answered, scoring.settings.answers, folder);
  });
  say(evaluation.console, "\n{}", some_answers(*questions, *answered));
  return metrics;
}

std::string scores_text(const ordered_json& metrics, std::string_view end) {
  std::string text;
  const auto add = [&](const char* name, const char* shown) {
    if (!metrics.contains(name)) return;
    text += fmt::format("{}{} {:.2f}{}", text.empty() || !end.empty() ? "" : ", ", shown,
                        metrics[name].get<double>(), end);
  };
  add("exact_match", "exact match");
  add("f1", "F1");
  return text;
}

}  // namespace bert_qa
