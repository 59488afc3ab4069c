#include "bert_qa/run/questions.h"

#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <functional>

namespace bert_qa {
namespace {

Questions read_file(const std::filesystem::path& file, const Settings& settings,
                    const WordPieceTokenizer& tokenizer, bool for_training,
                    std::vector<std::string>& notes) {
  // `predict` needs no gold answers.
  const bool asks = settings.command == Command::kPredict;
  QaDataset dataset = read_squad(file, {.check_answers = for_training,
                                        .need_answers = !asks,
                                        .skip_bad_rows = settings.data.skip_bad_rows});
  const FeatureOptions windows{.max_seq_length = settings.data.max_seq_length,
                               .doc_stride = settings.data.doc_stride};
  // Bad rows are removed before the limit is applied, because the limit counts usable questions.
  if (settings.data.skip_bad_rows) leave_out_long_questions(dataset, tokenizer, windows);
  for (const BadRow& row : dataset.skipped) {
    notes.push_back(fmt::format("{}: row {} is left out: {}", file.string(), row.id, row.reason));
  }
  if (!dataset.skipped.empty()) {
    notes.push_back(fmt::format("{}: {} of {} rows left out", file.string(), dataset.skipped.size(),
                                dataset.skipped.size() + dataset.questions.size()));
  }
  const int64_t limit =
      for_training ? settings.data.max_train_samples : settings.data.max_eval_samples;
  if (limit >= 0 && limit < std::ssize(dataset.questions)) dataset.questions.resize(limit);
  if (dataset.questions.empty()) {
    throw fsdp::IoError(
        fsdp::ExitCode::kCorruptData,
        {.what = "all questions of the file are left out",
         .where = file.string(),
         .hint = fmt::format("raise {}, or repair the rows that are left out",
                             for_training ? "--max-train-samples" : "--max-eval-samples")});
  }
  if (!asks && !settings.answers.version_2 && dataset.unanswerable_count() > 0) {
    const auto first = std::ranges::find_if(
        dataset.questions, [](const QaQuestion& question) { return question.answers.empty(); });
    throw fsdp::InvalidArgument(
        {.what =
             fmt::format("{} questions of {} have no answer; the first is {}",
                         dataset.unanswerable_count(), file.string(), fsdp::quoted_name(first->id)),
         .hint = "add --version-2-with-negative if the contexts do not answer these questions"},
        fsdp::ExitCode::kUsage);
  }
  QaFeatures features(dataset, tokenizer, windows);
  return {std::move(dataset), std::move(features)};
}

}  // namespace

QuestionSets read_questions(const Settings& settings, const WordPieceTokenizer& tokenizer) {
  QuestionSets sets;
  const auto read = [&](const std::filesystem::path& file, bool for_training) {
    return read_file(file, settings, tokenizer, for_training, sets.notes);
  };
  if (!settings.data.train_file.empty()) sets.train.emplace(read(settings.data.train_file, true));
  if (!settings.data.validation_file.empty()) {
    sets.validation.emplace(read(settings.data.validation_file, false));
  }
  return sets;
}

std::future<QuestionSets> read_questions_ahead(const Settings& settings,
                                               const WordPieceTokenizer& tokenizer) {
  // async, not deferred: the files must be read while the model is built.
  return std::async(std::launch::async, read_questions, std::cref(settings), std::cref(tokenizer));
}

}  // namespace bert_qa
