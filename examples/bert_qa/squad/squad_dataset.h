// Questions with answers cut from a text: SQuAD v1.1 and v2.0 files.
//
// Read are the nested schema data[].paragraphs[].{context, qas[].{id, question, answers[].{text,
// answer_start}, is_impossible}} and the flat rows {id, context, question, answers: {text[],
// answer_start[]}}, one JSON object a line or as the elements of data[].
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

struct QaAnswer {
  std::string text;
  int64_t start = 0;  // code points into the context; negative only where it is not checked
};

struct QaQuestion {
  std::string id;
  std::string question;
  int64_t context = 0;            // index into QaDataset::contexts
  std::vector<QaAnswer> answers;  // empty: the context does not answer the question
};

struct BadRow {
  std::string id;
  std::string reason;
};

struct QaDataset {
  std::vector<std::string> contexts;
  std::vector<QaQuestion> questions;  // in file order
  std::vector<BadRow> skipped;

  const std::string& context_of(const QaQuestion& question) const {
    return contexts[question.context];
  }
  int64_t unanswerable_count() const;
};

struct SquadOptions {
  // An answer must stand in the context where its answer_start says: training needs that, scoring
  // does not.
  bool check_answers = true;
  // A question must have answers, or say that it has none: [] or is_impossible. Who only asks need
  // not know them.
  bool need_answers = true;
  // Bad rows (an answer not at its offset, which may be negative, an id twice, an impossible
  // question with an answer) are left out and listed, and are no error.
  bool skip_bad_rows = false;
};

// Errors: IoError kIoError if the file cannot be read; IoError kCorruptData for anything that is
//   not the schema, with the file and the line and byte, or the id of the row; a key that is
//   missing where one that is nearly it is there is named with it.
QaDataset read_squad(const std::filesystem::path& path, const SquadOptions& options = {});
// The same from memory; `name` stands for the file in errors.
QaDataset parse_squad(std::string_view text, const std::string& name,
                      const SquadOptions& options = {});

}  // namespace bert_qa
