// Implements Questions for Natural Questions.
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bert_qa/nq/nq_decoding.h"
#include "bert_qa/nq/nq_features.h"
#include "bert_qa/nq/nq_metric.h"
#include "bert_qa/nq/nq_reader.h"
#include "bert_qa/run/output_folder.h"
#include "bert_qa/run/questions.h"

namespace bert_qa {
namespace {

class NqAnswers final : public Answers {
 public:
  NqAnswers(const NqFeatures& features, const std::vector<NqQuestion>& questions,
            std::vector<NqPrediction> predictions, const AnswerSettings& settings)
      : features_(features),
        questions_(questions),
        predictions_(std::move(predictions)),
        settings_(settings) {}

  nlohmann::ordered_json score() const override {
    return nq_metrics_json(score_nq(questions_, predictions_,
                                    {.long_non_null = settings_.long_non_null_threshold,
                                     .short_non_null = settings_.short_non_null_threshold}));
  }

  void write(const std::filesystem::path& folder) const override {
    write_json(folder / "predictions.json", nq_predictions_json(predictions_));
  }

 private:
  int64_t count() const override { return std::ssize(predictions_); }

  std::string lines_of(int64_t at) const override {
    const NqPrediction& answer = predictions_[at];
    const NqQuestion& question = questions_[at];
    std::string text =
        fmt::format("  Q: {}\n  A: {}\n", fsdp::printable(question.question),
                    text_of(at, answer.yes_no, answer.short_answers, answer.long_answer));
    if (question.annotations.empty()) return text;
    const NqAnnotation& gold = question.annotations.front();
    return text + fmt::format("     first annotation: {}\n",
                              text_of(at, gold.yes_no, gold.short_answers, gold.long_answer));
  }

  // Returns "king john, in tokens 3 to 86".
  std::string text_of(int64_t question, YesNo yes_no, const std::vector<NqSpan>& parts,
                      const NqSpan& long_answer) const {
    std::string text;
    for (const NqSpan& part : parts) {
      if (!text.empty()) text += ", ";
      text += fsdp::printable(features_.text(question, part.start_token, part.end_token));
    }
    if (yes_no != YesNo::kNone) text = name_of(yes_no);
    if (text.empty()) text = "(no short answer)";
    if (long_answer.is_null()) return text + ", no long answer";
    return fmt::format("{}, in tokens {} to {}", text, long_answer.start_token,
                       long_answer.end_token);
  }

  const NqFeatures& features_;
  const std::vector<NqQuestion>& questions_;
  std::vector<NqPrediction> predictions_;
  const AnswerSettings& settings_;
};

class NqQuestions final : public Questions {
 public:
  NqQuestions(NqFeatures features, std::vector<NqQuestion> questions,
              const AnswerSettings& settings)
      : features_(std::move(features)), questions_(std::move(questions)), settings_(settings) {}

  const Windows& windows() const override { return features_; }
  int64_t question_count() const override { return features_.question_count(); }
  std::unique_ptr<Answers> decode(std::span<const WindowLogits> logits) const override {
    return std::make_unique<NqAnswers>(
        features_, questions_,
        decode_nq(questions_, features_, logits,
                  {.n_best_size = settings_.n_best_size,
                   .max_answer_length = settings_.max_answer_length}),
        settings_);
  }

 private:
  NqFeatures features_;
  std::vector<NqQuestion> questions_;  // empty in training
  const AnswerSettings& settings_;
};

// Notes that no question can count as answered.
void note_thresholds(const QuestionFile& file, const std::vector<NqQuestion>& questions,
                     std::vector<std::string>& notes) {
  const AnswerSettings& answers = file.settings.answers;
  const int64_t least = std::min(answers.long_non_null_threshold, answers.short_non_null_threshold);
  const bool are_few = std::ranges::all_of(questions, [&](const NqQuestion& question) {
    return std::ssize(question.annotations) < least;
  });
  if (!are_few) return;
  notes.push_back(fmt::format(
      "{}: every question has fewer than {} annotations, so none counts as answered, as in nq_eval;"
      " --long-non-null-threshold 1 and --short-non-null-threshold 1 count one annotation",
      file.path.string(), least));
}

[[noreturn]] void refuse_without_windows(const QuestionFile& file) {
  throw fsdp::InvalidArgument(
      {.what = "no window of the file is kept: none holds a whole answer, and none was drawn",
       .where = file.path.string(),
       .hint = "raise --include-unknowns or --max-seq-length"});
}

}  // namespace

std::unique_ptr<Questions> read_nq_questions(const QuestionFile& file,
                                             std::vector<std::string>& notes) {
  const Settings& settings = file.settings;
  const DataSettings& data = settings.data;
  const bool asks = settings.command == Command::kPredict;
  NqReader reader(file.path, {.need_annotations = !asks, .skip_bad_rows = data.skip_bad_rows});
  NqFeatures features(file.tokenizer, {.max_seq_length = data.max_seq_length,
                                       .doc_stride = data.doc_stride,
                                       .max_query_length = data.max_query_length,
                                       .max_contexts = data.max_contexts,
                                       .for_training = file.for_training,
                                       .include_unknowns = data.include_unknowns,
                                       .seed = settings.seed});
  std::vector<NqQuestion> questions;
  const int64_t limit = file.limit();
  NqRecord record;
  while ((limit < 0 || features.question_count() < limit) && reader.next(record)) {
    features.add(record);
    if (!file.for_training) questions.push_back(question_of(record));
  }
  notes.insert(notes.end(), reader.skipped().begin(), reader.skipped().end());
  if (!reader.skipped().empty()) {
    notes.push_back(fmt::format("{}: {} of {} records left out", file.path.string(),
                                reader.skipped().size(),
                                std::ssize(reader.skipped()) + features.question_count()));
  }
  if (features.question_count() == 0) file.refuse_empty();
  if (features.window_count() == 0) refuse_without_windows(file);
  if (!file.for_training && !asks) note_thresholds(file, questions, notes);
  return std::make_unique<NqQuestions>(std::move(features), std::move(questions), settings.answers);
}

}  // namespace bert_qa
