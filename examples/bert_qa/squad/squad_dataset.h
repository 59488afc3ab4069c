// Reads SQuAD v1.1 and v2.0 files: questions whose answers are parts of a context.
//
// Two schemas are supported: the nested data[].paragraphs[].{context, qas[].{id, question,
// answers[].{text, answer_start}, is_impossible}} and flat rows {id, context, question, answers:
// {text[], answer_start[]}}, one JSON object on each line or as the elements of data[].
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

struct QaAnswer {
  std::string text;
  int64_t start = 0;  // code points into the context; negative only if it is not checked
};

struct QaQuestion {
  std::string id;
  std::string question;
  int64_t context = 0;            // index into QaDataset::contexts
  std::vector<QaAnswer> answers;  // empty: the context does not answer the question
};

// A row that was left out.
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

// Options of the reader.
struct SquadOptions {
  // Requires each answer to be in the context at its answer_start. Training needs it, scoring does
  // not.
  bool check_answers = true;
  // Requires each question to have answers, or to state that it has none: [] or is_impossible.
  // Predicting does not need answers.
  bool need_answers = true;
  // Leaves out and lists bad rows instead of throwing: an answer not at its offset (which may be
  // negative), a repeated id, an impossible question with an answer.
  bool skip_bad_rows = false;
};

// Reads a file. Errors: IoError kIoError if the file cannot be read; IoError kCorruptData for
//   content that does not match the schema, with the file and the line and byte, or the id of the
//   row. If a key is missing and the object has a similar one, the error names both.
QaDataset read_squad(const std::filesystem::path& path, const SquadOptions& options = {});
// Reads from memory; `name` stands for the file in errors.
QaDataset parse_squad(std::string_view text, const std::string& name,
                      const SquadOptions& options = {});

}  // namespace bert_qa
