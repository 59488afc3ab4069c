// Implements Questions for SQuAD.
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bert_qa/run/output_folder.h"
#include "bert_qa/run/questions.h"
#include "bert_qa/squad/qa_decoding.h"
#include "bert_qa/squad/qa_features.h"
#include "bert_qa/squad/qa_metric.h"
#include "bert_qa/squad/squad_dataset.h"

namespace bert_qa {
namespace {

class SquadAnswers final : public Answers {
 public:
  SquadAnswers(const QaDataset& dataset, std::vector<DecodedAnswer> answers,
               const AnswerSettings& settings)
      : dataset_(dataset), answers_(std::move(answers)), settings_(settings) {}

  nlohmann::ordered_json score() const override {
    std::vector<std::string> texts;
    std::vector<float> null_scores;
    for (const DecodedAnswer& each : answers_) {
      texts.push_back(each.text);
      null_scores.push_back(each.null_score_diff);
    }
    if (settings_.version_2) {
      nlohmann::ordered_json metrics = metrics_json(score_v2(dataset_, texts, null_scores));
      metrics["exact_match"] = metrics["exact"];  // the name in v1.1
      return metrics;
    }
    return metrics_json(score_v1(dataset_, texts));
  }

  void write(const std::filesystem::path& folder) const override {
    write_json(folder / "predictions.json", predictions_json(answers_));
    write_json(folder / "nbest_predictions.json", n_best_json(answers_));
    if (settings_.version_2) write_json(folder / "null_odds.json", null_odds_json(answers_));
  }

 private:
  int64_t count() const override { return std::ssize(answers_); }

  std::string lines_of(int64_t at) const override {
    const QaQuestion& question = dataset_.questions[at];
    const std::string& answer = answers_[at].text;
    std::string text = fmt::format("  Q: {}\n  A: {}\n", fsdp::printable(question.question),
                                   answer.empty() ? "(no answer)" : fsdp::printable(answer));
    const bool right = std::ranges::any_of(
        question.answers, [&](const QaAnswer& gold) { return is_exact_match(answer, gold.text); });
    if (right) {
      text += "     right\n";
    } else if (!question.answers.empty()) {
      text += fmt::format("     expected: {}\n", fsdp::printable(question.answers.front().text));
    }
    return text;
  }

  const QaDataset& dataset_;
  std::vector<DecodedAnswer> answers_;
  const AnswerSettings& settings_;
};

class SquadQuestions final : public Questions {
 public:
  SquadQuestions(QaDataset dataset, QaFeatures features, const AnswerSettings& settings)
      : dataset_(std::move(dataset)), features_(std::move(features)), settings_(settings) {}

  const Windows& windows() const override { return features_; }
  int64_t question_count() const override { return features_.question_count(); }
  std::unique_ptr<Answers> decode(std::span<const WindowLogits> logits) const override {
    return std::make_unique<SquadAnswers>(
        dataset_,
        decode_answers(dataset_, features_, logits,
                       {.n_best_size = settings_.n_best_size,
                        .max_answer_length = settings_.max_answer_length,
                        .version_2_with_negative = settings_.version_2,
                        .null_score_diff_threshold = settings_.null_score_diff_threshold}),
        settings_);
  }

 private:
  QaDataset dataset_;
  QaFeatures features_;
  const AnswerSettings& settings_;
};

}  // namespace

std::unique_ptr<Questions> read_squad_questions(const QuestionFile& file,
                                                std::vector<std::string>& notes) {
  const auto& [path, settings, tokenizer, for_training] = file;
  // `predict` needs no gold answers.
  const bool asks = settings.command == Command::kPredict;
  QaDataset dataset = read_squad(path, {.check_answers = for_training,
                                        .need_answers = !asks,
                                        .skip_bad_rows = settings.data.skip_bad_rows});
  const FeatureOptions windows{.max_seq_length = settings.data.max_seq_length,
                               .doc_stride = settings.data.doc_stride};
  // Bad rows are removed before the limit is applied, because the limit counts usable questions.
  if (settings.data.skip_bad_rows) leave_out_long_questions(dataset, tokenizer, windows);
  for (const BadRow& row : dataset.skipped) {
    notes.push_back(fmt::format("{}: row {} is left out: {}", path.string(), row.id, row.reason));
  }
  if (!dataset.skipped.empty()) {
    notes.push_back(fmt::format("{}: {} of {} rows left out", path.string(), dataset.skipped.size(),
                                dataset.skipped.size() + dataset.questions.size()));
  }
  const int64_t limit = file.limit();
  if (limit >= 0 && limit < std::ssize(dataset.questions)) dataset.questions.resize(limit);
  if (dataset.questions.empty()) file.refuse_empty();
  if (!asks && !settings.answers.version_2 && dataset.unanswerable_count() > 0) {
    const auto first = std::ranges::find_if(
        dataset.questions, [](const QaQuestion& question) { return question.answers.empty(); });
    throw fsdp::InvalidArgument(
        {.what =
             fmt::format("{} questions of {} have no answer; the first is {}",
                         dataset.unanswerable_count(), path.string(), fsdp::quoted_name(first->id)),
         .hint = "add --version-2-with-negative if the contexts do not answer these questions"},
        fsdp::ExitCode::kUsage);
  }
  QaFeatures features(dataset, tokenizer, windows);
  return std::make_unique<SquadQuestions>(std::move(dataset), std::move(features),
                                          settings.answers);
}

}  // namespace bert_qa
