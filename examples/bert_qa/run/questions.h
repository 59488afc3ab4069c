// Reads the questions of a run and cuts them into windows.
#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bert_qa/run/settings.h"
#include "bert_qa/text/wordpiece_tokenizer.h"
#include "bert_qa/windows/qa_batch.h"
#include "bert_qa/windows/window_logits.h"

namespace bert_qa {

// The answers to the questions of a file.
class Answers {
 public:
  virtual ~Answers() = default;
  // Returns the metrics with the names of the task's official script. Requires: the questions have
  // gold answers.
  virtual nlohmann::ordered_json score() const = 0;
  // Writes the files of the task to a folder.
  virtual void write(const std::filesystem::path& folder) const = 0;
  // Returns some questions and answers, spread over the file, as text for the user.
  std::string some() const;

 private:
  virtual int64_t count() const = 0;
  // Returns a question and its answers as indented lines. Line breaks in them are escaped.
  virtual std::string lines_of(int64_t question) const = 0;
};

// The questions of one file, with their windows. There is an implementation for each task.
class Questions {
 public:
  virtual ~Questions() = default;
  virtual const Windows& windows() const = 0;
  virtual int64_t question_count() const = 0;
  // Returns the answers, which refer to this object.
  // Requires: `logits` has an entry for each window.
  virtual std::unique_ptr<Answers> decode(std::span<const WindowLogits> logits) const = 0;
};

// The questions of a run's files.
struct QuestionSets {
  std::unique_ptr<Questions> train, validation;  // null for files that the settings do not name
  std::vector<std::string> notes;                // for the user
};

// Reads the files of the settings. Both arguments outlive the result. Throws IoError or
// InvalidArgument; the message names the file and what is wrong with it.
QuestionSets read_questions(const Settings& settings, const WordPieceTokenizer& tokenizer);

// Starts read_questions in a new thread. get() of the future throws its exception.
// Requires: both arguments outlive the future. The future's destructor waits for the thread.
std::future<QuestionSets> read_questions_ahead(const Settings& settings,
                                               const WordPieceTokenizer& tokenizer);

// A file of questions that read_questions reads.
struct QuestionFile {
  const std::filesystem::path& path;
  const Settings& settings;
  const WordPieceTokenizer& tokenizer;
  bool for_training;

  // The most questions to read; negative: all.
  int64_t limit() const;
  // Throws IoError kCorruptData: no question of the file is left.
  [[noreturn]] void refuse_empty() const;
};

// Read a file of one task. Append lines for the user to `notes`.
std::unique_ptr<Questions> read_squad_questions(const QuestionFile& file,
                                                std::vector<std::string>& notes);
std::unique_ptr<Questions> read_nq_questions(const QuestionFile& file,
                                             std::vector<std::string>& notes);

}  // namespace bert_qa
