#include "bert_qa/run/questions.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>
#include <functional>

namespace bert_qa {

std::string Answers::some() const {
  const int64_t shown = std::min<int64_t>(5, count());
  std::string text;
  for (int64_t i = 0; i < shown; ++i) text += lines_of(i * count() / shown);
  return text;
}

int64_t QuestionFile::limit() const {
  return for_training ? settings.data.max_train_samples : settings.data.max_eval_samples;
}

void QuestionFile::refuse_empty() const {
  throw fsdp::IoError(
      fsdp::ExitCode::kCorruptData,
      {.what = "all questions of the file are left out",
       .where = path.string(),
       .hint = fmt::format("raise {}, or repair the rows that are left out",
                           for_training ? "--max-train-samples" : "--max-eval-samples")});
}

QuestionSets read_questions(const Settings& settings, const WordPieceTokenizer& tokenizer) {
  QuestionSets sets;
  const auto read = [&](const std::filesystem::path& path, bool for_training) {
    const QuestionFile file{path, settings, tokenizer, for_training};
    return settings.task == Task::kNq ? read_nq_questions(file, sets.notes)
                                      : read_squad_questions(file, sets.notes);
  };
  if (!settings.data.train_file.empty()) sets.train = read(settings.data.train_file, true);
  if (!settings.data.validation_file.empty()) {
    sets.validation = read(settings.data.validation_file, false);
  }
  return sets;
}

std::future<QuestionSets> read_questions_ahead(const Settings& settings,
                                               const WordPieceTokenizer& tokenizer) {
  // async, not deferred: the files must be read while the model is built.
  return std::async(std::launch::async, read_questions, std::cref(settings), std::cref(tokenizer));
}

}  // namespace bert_qa
