// Reads SQuAD v1.1 and v2.0 files: questions whose answers are parts of a context.
//
// Two schemas are supported. The nested schema is data[].paragraphs[].{context, qas[].{id,
// question, answers[].{text, answer_start}, is_impossible}}. The flat schema has rows {id, context,
// question, answers: {text[], answer_start[]}}, either one JSON object on each line or as the
// elements of data[].
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

struct QaAnswer {
  std::string text;
  int64_t start = 0;  // offset in code points; negative only if it is not checked
};

struct QaQuestion {
  std::string id;
  std::string question;
  int64_t context = 0;            // index into QaDataset::contexts
  std::vector<QaAnswer> answers;  // empty if the context has no answer
};

// A row that was skipped.
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
  // Requires each answer to be in the context at its answer_start. Training needs this, scoring
  // does not.
  bool check_answers = true;
  // Requires each question to have answers, or to state that it has none ([] or is_impossible).
  // Prediction does not need answers.
  bool need_answers = true;
  // Skips and lists bad rows instead of throwing. A row is bad if an answer is not at its offset
  // (also if the offset is negative), if its id is repeated, or if an impossible question has an
  // answer.
  bool skip_bad_rows = false;
};

// Reads a file.
// Errors: IoError kIoError if the file cannot be read. IoError kCorruptData if the content does not
//   match the schema; the error names the file and either the line and byte or the id of the row.
//   If a key is missing and the object has a similar key, the error names both.
QaDataset read_squad(const std::filesystem::path& path, const SquadOptions& options = {});
// Parses a text in memory. `name` is the file name in errors.
QaDataset parse_squad(std::string_view text, const std::string& name,
                      const SquadOptions& options = {});

}  // namespace bert_qa
