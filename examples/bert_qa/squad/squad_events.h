// Converts JSON events to questions. This part of the SQuAD reader follows the nesting of the file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/squad/meant_key.h"
#include "bert_qa/squad/squad_dataset.h"
#include "io/json_text.h"

namespace bert_qa {

// A receiver of JSON events. A record is an object of data[], paragraphs[], qas[] or of a line. A
// record with a question is a question. A context belongs to all questions inside its record that
// have no context yet. These rules cover both schemas, with keys in any order.
class SquadEvents final : public fsdp::JsonEvents {
 public:
  struct Row {
    QaQuestion question;
    bool impossible = false;
    // The reason why the question has no answers, if it does not state that it has none.
    std::string without_answers{};
  };

  // The results of one document, or of several documents (one for each line). If consecutive
  // contexts are equal, they are stored once.
  std::vector<std::string> contexts;
  std::vector<Row> rows;

  void on_null() override { scalar("null"); }
  void on_boolean(bool value) override;
  void on_unsigned(uint64_t value) override;
  void on_negative(int64_t value) override;
  void on_real(double) override { scalar("a number with a fraction"); }
  void on_string(std::string& value) override;
  void on_key(std::string& key) override;
  void start_object() override;
  void end_object() override;
  void start_array() override { open(/*object=*/false); }
  void end_array() override;

 private:
  enum class Scope : uint8_t {
    kRecord,
    kRecords,     // data, paragraphs, qas
    kAnswerList,  // answers: [{text, answer_start}]
    kAnswer,
    kAnswerTable,  // answers: {text: [], answer_start: []}
    kTexts,
    kStarts,
    kSkipped,
  };
  // The keys of the schema.
  enum class Key : uint8_t {
    kOther,
    kRecords,
    kAnswers,
    kId,
    kQuestion,
    kContext,
    kImpossible,
    kText,
    kStart,
  };
  struct Record {
    std::optional<std::string> id, question, context;
    std::optional<bool> impossible;
    std::vector<QaAnswer> answers;
    bool has_answers = false, has_records = false;
    size_t first_row = 0;  // number of rows when the record began
    UnknownKeys unknown, unknown_arrays;

    std::string name() const;  // "question '17'", or less if the id is not known yet
  };

  void open(bool object);
  Scope scope_below(bool object) const;
  Key expected() const;
  void scalar(const char* got);
  void put_start(int64_t start);
  [[noreturn]] void refuse(const char* got) const;
  [[noreturn]] void refuse_key(const Record& record, std::string_view key,
                               std::string_view meant) const;
  void note_unknown(bool array);
  void check_keys(const Record& record) const;
  std::string meant_in_answer(std::initializer_list<std::string_view> missing) const;
  Row row_of(Record& record) const;
  void close_record();
  void close_answer();
  void close_answer_table();
  int64_t context_index(std::string&& context);

  std::vector<Scope> scopes_;
  std::vector<Key> keys_;  // the last key of each open scope
  std::vector<Record> records_;
  std::optional<std::string> text_;
  std::optional<int64_t> start_;
  std::vector<std::string> texts_;
  std::vector<int64_t> starts_;
  bool has_texts_ = false, has_starts_ = false;  // in the open table
  std::string key_;                              // the last unknown key
  UnknownKeys unknown_in_answer_;
  std::string context_key_;  // an unknown key that may stand for a context
};

}  // namespace bert_qa
