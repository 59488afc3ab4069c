#include "bert_qa/nq/nq_events.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace bert_qa {
namespace {

using Scope = NqEvents::Scope;
using Type = NqEvents::Type;
using Key = NqEvents::Key;

constexpr const char* kHint =
    "use records of Natural Questions, in the original or the simplified format, one per line";

constexpr Key kKeys[] = {
    {Scope::kRecord, "example_id", Type::kInteger},
    {Scope::kRecord, "question_text", Type::kText},
    {Scope::kRecord, "document_text", Type::kText, Scope::kSkipped, /*required=*/false},
    {Scope::kRecord, "document_tokens", Type::kArray, Scope::kTokens, /*required=*/false},
    {Scope::kRecord, "long_answer_candidates", Type::kArray, Scope::kCandidates},
    {Scope::kRecord, "annotations", Type::kArray, Scope::kAnnotations, /*required=*/false},
    {Scope::kToken, "token", Type::kText},
    {Scope::kToken, "html_token", Type::kFlag},
    {Scope::kCandidate, "start_token", Type::kInteger},
    {Scope::kCandidate, "end_token", Type::kInteger},
    {Scope::kCandidate, "top_level", Type::kFlag},
    {Scope::kCandidate, "start_byte", Type::kInteger, Scope::kSkipped, /*required=*/false},
    {Scope::kCandidate, "end_byte", Type::kInteger, Scope::kSkipped, /*required=*/false},
    {Scope::kAnnotation, "long_answer", Type::kObject, Scope::kLongAnswer},
    {Scope::kAnnotation, "short_answers", Type::kArray, Scope::kShortAnswers},
    {Scope::kAnnotation, "yes_no_answer", Type::kText},
    {Scope::kLongAnswer, "start_token", Type::kInteger},
    {Scope::kLongAnswer, "end_token", Type::kInteger},
    {Scope::kLongAnswer, "candidate_index", Type::kInteger},
    {Scope::kLongAnswer, "start_byte", Type::kInteger, Scope::kSkipped, /*required=*/false},
    {Scope::kLongAnswer, "end_byte", Type::kInteger, Scope::kSkipped, /*required=*/false},
    {Scope::kShortAnswer, "start_token", Type::kInteger},
    {Scope::kShortAnswer, "end_token", Type::kInteger},
    {Scope::kShortAnswer, "start_byte", Type::kInteger, Scope::kSkipped, /*required=*/false},
    {Scope::kShortAnswer, "end_byte", Type::kInteger, Scope::kSkipped, /*required=*/false},
};
static_assert(std::size(kKeys) <= 32, "Level::seen has a bit for each key");

uint32_t bit_of(const Key& key) { return uint32_t{1} << (&key - kKeys); }

const char* name_of(Type type) {
  switch (type) {
    case Type::kInteger:
      return "an integer";
    case Type::kText:
      return "a string";
    case Type::kFlag:
      return "true or false";
    case Type::kObject:
      return "an object";
    case Type::kArray:
      return "an array";
    case Type::kNone:
      break;
  }
  return "null";
}

// Returns the object's name in errors.
const char* name_of(Scope scope) {
  switch (scope) {
    case Scope::kToken:
      return "a token of the document";
    case Scope::kCandidate:
      return "a long-answer candidate";
    case Scope::kAnnotation:
      return "an annotation";
    case Scope::kLongAnswer:
      return "a long answer";
    case Scope::kShortAnswer:
      return "a short answer";
    default:
      return "the record";
  }
}

// Returns the scope of the elements of an array.
Scope element_of(Scope array) {
  switch (array) {
    case Scope::kTokens:
      return Scope::kToken;
    case Scope::kCandidates:
      return Scope::kCandidate;
    case Scope::kAnnotations:
      return Scope::kAnnotation;
    case Scope::kShortAnswers:
      return Scope::kShortAnswer;
    default:
      return Scope::kSkipped;
  }
}

bool is_object(Scope scope) { return element_of(scope) == Scope::kSkipped; }

// Returns true for a tag such as <P>, </Table> or <Td_colspan="2">. The simplified format does not
// mark tags.
bool is_tag(std::string_view token) {
  if (token.size() < 3 || token.front() != '<' || token.back() != '>') return false;
  const char first = token[1] == '/' ? token[2] : token[1];
  return (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z');
}

}  // namespace

// Returns true if the value belongs to the schema. Refuses a value of another type than the key's.
bool NqEvents::value(Type type, const char* got) {
  if (levels_.empty()) fail(fmt::format("expected an object, got {}", got), kHint);
  const Level& level = levels_.back();
  if (level.scope == Scope::kSkipped) return false;
  if (!is_object(level.scope)) {
    fail(fmt::format("expected {} as an object, got {}", name_of(element_of(level.scope)), got));
  }
  if (level.key == nullptr) return false;
  if (level.key->type != type) {
    fail(fmt::format("{} of {} is {}, expected {}", level.key->name, name_of(level.scope), got,
                     name_of(level.key->type)));
  }
  return true;
}

void NqEvents::on_boolean(bool given) {
  if (value(Type::kFlag, "true or false")) fields_.flag = given;
}

void NqEvents::on_unsigned(uint64_t given) {
  if (!value(Type::kInteger, "a number")) return;
  if (given > uint64_t{std::numeric_limits<int64_t>::max()}) {
    fail(fmt::format("{} is {}, which does not fit 64 bits", levels_.back().key->name, given));
  }
  integer(static_cast<int64_t>(given));
}

void NqEvents::on_negative(int64_t given) {
  if (value(Type::kInteger, "a number")) integer(given);
}

void NqEvents::integer(int64_t given) {
  const std::string_view key = levels_.back().key->name;
  if (key == "example_id") {
    record_.example_id = given;
    return;
  }
  // -1 stands for a value that is not given.
  if (given < -1) fail(fmt::format("{} is {}, expected -1 or more", key, given));
  int64_t& field = key == "start_token"  ? fields_.span.start_token
                   : key == "end_token"  ? fields_.span.end_token
                   : key == "start_byte" ? fields_.span.start_byte
                   : key == "end_byte"   ? fields_.span.end_byte
                                         : fields_.candidate;
  field = given;
}

void NqEvents::on_string(std::string& given) {
  if (!value(Type::kText, "a string")) return;
  const std::string_view key = levels_.back().key->name;
  if (key == "question_text") {
    record_.question = std::move(given);
  } else if (key == "document_text") {
    set_document_text(given);
  } else if (key == "token") {
    fields_.text = std::move(given);
  } else {
    const std::optional<YesNo> answer = yes_no_of(given);
    if (!answer) {
      fail(fmt::format("yes_no_answer is {}, expected YES, NO or NONE", fsdp::quoted_name(given)));
    }
    annotation_.yes_no = *answer;
  }
}

// Single spaces separate the tokens. Two spaces enclose an empty token, which has a number, too.
void NqEvents::set_document_text(std::string_view text) {
  for (size_t at = 0;;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view token = text.substr(at, end - at);
    record_.document.add(token, is_tag(token));
    if (end == text.size()) return;
    at = end + 1;
  }
}

void NqEvents::on_key(std::string& name) {
  Level& level = levels_.back();
  level.key = nullptr;
  if (level.scope == Scope::kSkipped) return;
  for (const Key& key : kKeys) {
    if (key.in != level.scope || key.name != name) continue;
    level.key = &key;
    level.seen |= bit_of(key);
    return;
  }
}

void NqEvents::open(Type type) {
  if (levels_.empty()) {
    if (type != Type::kObject) fail("expected an object, got an array", kHint);
    levels_.push_back({Scope::kRecord});
    return;
  }
  const Scope scope = levels_.back().scope;
  Scope below = Scope::kSkipped;
  if (!is_object(scope) && type == Type::kObject) {
    below = element_of(scope);
  } else if (value(type, name_of(type))) {
    below = levels_.back().key->below;
  }
  if (below == Scope::kAnnotation) annotation_ = {};
  if (below != Scope::kSkipped && is_object(below)) fields_ = {};
  levels_.push_back({below});
}

void NqEvents::require_keys(const Level& level) const {
  for (const Key& key : kKeys) {
    if (key.in != level.scope || !key.required || (level.seen & bit_of(key)) != 0) continue;
    fail(fmt::format("{} has no {}", name_of(level.scope), key.name), kHint);
  }
  if (level.scope != Scope::kRecord) return;
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(kKeys, [&](const Key& key) {
      return key.in == Scope::kRecord && key.name == name && (level.seen & bit_of(key)) != 0;
    });
  };
  if (has("document_text") == has("document_tokens")) {
    fail(has("document_text") ? "the record has both document_text and document_tokens"
                              : "the record has neither document_text nor document_tokens",
         kHint);
  }
  if (need_annotations_ && record_.annotations.empty()) {
    fail("the record has no annotations", "use annotated records, or bert_qa predict");
  }
}

void NqEvents::end_object() {
  const Level level = levels_.back();
  levels_.pop_back();
  if (level.scope == Scope::kSkipped) return;
  require_keys(level);
  close(level);
}

void NqEvents::close(const Level& level) {
  switch (level.scope) {
    case Scope::kToken:
      std::erase(fields_.text, ' ');
      record_.document.add(fields_.text, fields_.flag);
      break;
    case Scope::kCandidate:
      record_.candidates.push_back({.span = fields_.span, .top_level = fields_.flag});
      break;
    case Scope::kLongAnswer:
      annotation_.long_answer = fields_.span;
      annotation_.candidate = fields_.candidate;
      break;
    case Scope::kShortAnswer:
      annotation_.short_answers.push_back(fields_.span);
      break;
    case Scope::kAnnotation:
      record_.annotations.push_back(std::move(annotation_));
      break;
    default:
      break;
  }
}

}  // namespace bert_qa
