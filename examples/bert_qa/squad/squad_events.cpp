#include "bert_qa/squad/squad_events.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <limits>

namespace bert_qa {
namespace {

constexpr int64_t kNoContext = -1;

}  // namespace

// Returns the key of a value at this position: the last key of the object, or the key of the
// elements of the array.
SquadEvents::Key SquadEvents::expected() const {
  if (scopes_.empty()) return Key::kRecords;
  switch (scopes_.back()) {
    case Scope::kRecords:
      return Key::kRecords;
    case Scope::kAnswerList:
      return Key::kAnswers;
    case Scope::kTexts:
      return Key::kText;
    case Scope::kStarts:
      return Key::kStart;
    case Scope::kSkipped:
      return Key::kOther;
    default:
      return keys_.back();
  }
}

void SquadEvents::refuse(const char* got) const {
  const char* wanted = "";
  switch (expected()) {
    case Key::kRecords:
      wanted = "data, paragraphs and qas as arrays of objects";
      break;
    case Key::kAnswers:
      wanted = "answers as an array of objects, or as an object of two arrays";
      break;
    case Key::kId:
      wanted = "id as a string";
      break;
    case Key::kQuestion:
      wanted = "question as a string";
      break;
    case Key::kContext:
      wanted = "context as a string";
      break;
    case Key::kImpossible:
      wanted = "is_impossible as true or false";
      break;
    case Key::kText:
      wanted = "an answer's text as a string";
      break;
    case Key::kStart:
      wanted = "answer_start as a number of code points, 0 or more";
      break;
    case Key::kOther:
      wanted = "only the schema's keys and values";
      break;
  }
  fail(fmt::format("not a SQuAD file: expected {}, got {}", wanted, got),
       "use SQuAD v1.1 or v2.0, or one flat JSON object per line");
}

void SquadEvents::scalar(const char* got) {
  if (expected() != Key::kOther) refuse(got);
  note_unknown(/*array=*/false);
}

void SquadEvents::note_unknown(bool array) {
  const Scope scope = scopes_.back();
  if (scope == Scope::kAnswer || scope == Scope::kAnswerTable) unknown_in_answer_.add(key_);
  if (scope != Scope::kRecord) return;
  (array ? records_.back().unknown_arrays : records_.back().unknown).add(key_);
}

void SquadEvents::refuse_key(const Record& record, std::string_view key,
                             std::string_view meant) const {
  const std::string name = record.name();
  fail(fmt::format("{}{}{}", name, name.empty() ? "" : ": ", misspelled(key, meant)),
       fmt::format("rename the key to '{}'", meant));
}

std::string SquadEvents::Record::name() const {
  if (id) return fmt::format("question {}", fsdp::quoted_name(*id));
  return question ? fmt::format("the question {}", fsdp::quoted_name(*question)) : "";
}

void SquadEvents::on_boolean(bool value) {
  if (expected() != Key::kImpossible) return scalar("true or false");
  records_.back().impossible = value;
}

void SquadEvents::on_unsigned(uint64_t value) {
  if (expected() != Key::kStart) return scalar("a number");
  if (value > uint64_t{std::numeric_limits<int32_t>::max()}) refuse("a number above 2^31");
  put_start(static_cast<int64_t>(value));
}

// Accepts negative starts. Some data sets write -1 for an answer that is not in the context. In
// that case the row is bad, but the file is not.
void SquadEvents::on_negative(int64_t value) {
  if (expected() != Key::kStart) return scalar("a negative number");
  if (value < std::numeric_limits<int32_t>::min()) refuse("a number below -2^31");
  put_start(value);
}

void SquadEvents::put_start(int64_t start) {
  if (scopes_.back() == Scope::kStarts) {
    starts_.push_back(start);
  } else {
    start_ = start;
  }
}

void SquadEvents::on_string(std::string& value) {
  switch (expected()) {
    case Key::kId:
      records_.back().id = std::move(value);
      break;
    case Key::kQuestion:
      records_.back().question = std::move(value);
      break;
    case Key::kContext:
      records_.back().context = std::move(value);
      break;
    case Key::kText:
      if (scopes_.back() == Scope::kTexts) {
        texts_.push_back(std::move(value));
      } else {
        text_ = std::move(value);
      }
      break;
    default:
      scalar("a string");
  }
}

void SquadEvents::on_key(std::string& key) {
  Key meaning = Key::kOther;
  const Scope scope = scopes_.back();
  if (scope == Scope::kRecord) {
    meaning = key == "data" || key == "paragraphs" || key == "qas" ? Key::kRecords
              : key == "answers"                                   ? Key::kAnswers
              : key == "id"                                        ? Key::kId
              : key == "question"                                  ? Key::kQuestion
              : key == "context"                                   ? Key::kContext
              : key == "is_impossible"                             ? Key::kImpossible
                                                                   : Key::kOther;
  } else if (scope == Scope::kAnswer || scope == Scope::kAnswerTable) {
    meaning = key == "text" ? Key::kText : key == "answer_start" ? Key::kStart : Key::kOther;
  }
  keys_.back() = meaning;
  if (meaning == Key::kOther) key_ = std::move(key);
}

SquadEvents::Scope SquadEvents::scope_below(bool object) const {
  if (scopes_.empty()) {
    if (!object) refuse("an array");
    return Scope::kRecord;
  }
  const Scope scope = scopes_.back();
  const Key key = expected();
  if (key == Key::kOther) return Scope::kSkipped;
  if (scope == Scope::kRecords && object) return Scope::kRecord;
  if (scope == Scope::kAnswerList && object) return Scope::kAnswer;
  if (scope == Scope::kRecord && key == Key::kRecords && !object) return Scope::kRecords;
  if (scope == Scope::kRecord && key == Key::kAnswers) {
    return object ? Scope::kAnswerTable : Scope::kAnswerList;
  }
  if (scope == Scope::kAnswerTable && !object) {
    return key == Key::kText ? Scope::kTexts : Scope::kStarts;
  }
  refuse(object ? "an object" : "an array");
}

void SquadEvents::open(bool object) {
  const Scope scope = scope_below(object);
  if (scope == Scope::kSkipped) note_unknown(!object);
  if (scope == Scope::kRecords) records_.back().has_records = true;
  if (scope == Scope::kAnswerList || scope == Scope::kAnswerTable) {
    records_.back().has_answers = true;
  }
  if (scope == Scope::kAnswer || scope == Scope::kAnswerTable) {
    unknown_in_answer_ = {};
    has_texts_ = has_starts_ = false;
  }
  has_texts_ |= scope == Scope::kTexts;
  has_starts_ |= scope == Scope::kStarts;
  if (scope == Scope::kRecord) records_.push_back({.first_row = rows.size()});
  scopes_.push_back(scope);
  keys_.push_back(Key::kOther);
}

void SquadEvents::start_object() { open(/*object=*/true); }

void SquadEvents::end_object() {
  switch (scopes_.back()) {
    case Scope::kRecord:
      close_record();
      break;
    case Scope::kAnswer:
      close_answer();
      break;
    case Scope::kAnswerTable:
      close_answer_table();
      break;
    default:
      break;
  }
  end_array();
}

void SquadEvents::end_array() {
  scopes_.pop_back();
  keys_.pop_back();
}

// Returns ": the key 'start' is not known, 'answer_start' is meant" for the first missing key for
// which a similar unknown key exists.
std::string SquadEvents::meant_in_answer(std::initializer_list<std::string_view> missing) const {
  for (const std::string_view meant : missing) {
    const std::string_view key = unknown_in_answer_.like(meant);
    if (!key.empty()) return ": " + misspelled(key, meant);
  }
  return {};
}

void SquadEvents::close_answer() {
  if (!text_ || !start_) {
    const std::string name = records_.back().name();
    const std::string why = !text_ && !start_ ? meant_in_answer({"text", "answer_start"})
                            : !text_          ? meant_in_answer({"text"})
                                              : meant_in_answer({"answer_start"});
    fail(fmt::format("an answer{}{} has no text or answer_start{}", name.empty() ? "" : " of ",
                     name, why));
  }
  records_.back().answers.push_back({std::move(*text_), *start_});
  text_.reset();
  start_.reset();
}

void SquadEvents::close_answer_table() {
  if ((!has_texts_ || !has_starts_) && !text_ && !start_) {
    const std::string name = records_.back().name();
    const char* missing = has_texts_ ? "answer_start" : "text";
    fail(fmt::format("answers{}{} have no {}{}", name.empty() ? "" : " of ", name, missing,
                     meant_in_answer({missing})));
  }
  if (texts_.size() != starts_.size() || text_ || start_) {
    fail(fmt::format("answers have {} texts and {} answer_start, expected the same number of each",
                     texts_.size(), starts_.size()));
  }
  for (size_t i = 0; i < texts_.size(); ++i) {
    records_.back().answers.push_back({std::move(texts_[i]), starts_[i]});
  }
  texts_.clear();
  starts_.clear();
}

// Refuses a record in which a key of the schema is missing and a similar key exists. Otherwise the
// value of the similar key would be ignored.
void SquadEvents::check_keys(const Record& record) const {
  const auto check = [&](const UnknownKeys& keys, std::string_view meant) {
    const std::string_view key = keys.like(meant);
    if (!key.empty()) refuse_key(record, key, meant);
  };
  if (record.question) {
    if (!record.impossible) check(record.unknown, "is_impossible");
    if (!record.id) check(record.unknown, "id");
  } else if (record.id || record.has_answers) {
    check(record.unknown, "question");
  } else if (!record.has_records) {
    for (const char* meant : {"data", "paragraphs", "qas"}) check(record.unknown_arrays, meant);
  }
}

SquadEvents::Row SquadEvents::row_of(Record& record) const {
  if (!record.id) fail("a question has no id");
  Row row{.question = {.id = std::move(*record.id),
                       .question = std::move(*record.question),
                       .context = kNoContext,
                       .answers = std::move(record.answers)},
          .impossible = record.impossible.value_or(false)};
  if (record.has_answers || row.impossible) return row;
  for (const UnknownKeys* keys : {&record.unknown_arrays, &record.unknown}) {
    const std::string_view key = keys->like("answers");
    if (key.empty()) continue;
    row.without_answers = misspelled(key, "answers");
    return row;
  }
  const std::string keys = record.unknown_arrays.list() + record.unknown.list();
  row.without_answers =
      fmt::format("the key 'answers' is missing{}{}", keys.empty() ? "" : "; unknown keys:", keys);
  return row;
}

void SquadEvents::close_record() {
  Record record = std::move(records_.back());
  records_.pop_back();
  check_keys(record);
  if (record.question) {
    rows.push_back(row_of(record));
  } else if (!record.answers.empty()) {
    fail("an object has answers but no question");
  }
  if (record.context) {
    const int64_t context = context_index(std::move(*record.context));
    for (size_t i = record.first_row; i < rows.size(); ++i) {
      if (rows[i].question.context == kNoContext) rows[i].question.context = context;
    }
  } else if (context_key_.empty()) {
    context_key_ = record.unknown.like("context");
  }
  // Keys may be in any order. So only at the end of the outermost record must each question have a
  // context.
  if (!records_.empty()) return;
  for (size_t i = record.first_row; i < rows.size(); ++i) {
    if (rows[i].question.context != kNoContext) continue;
    fail(fmt::format("the question {} has no context{}{}", fsdp::quoted_name(rows[i].question.id),
                     context_key_.empty() ? "" : ": ",
                     context_key_.empty() ? "" : misspelled(context_key_, "context")));
  }
}

// Flat rows repeat a context for each question. Equal contexts follow each other, so only the last
// one is compared.
int64_t SquadEvents::context_index(std::string&& context) {
  if (contexts.empty() || contexts.back() != context) contexts.push_back(std::move(context));
  return static_cast<int64_t>(contexts.size()) - 1;
}

}  // namespace bert_qa
