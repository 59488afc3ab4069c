// Holds one record of Natural Questions: a question, the page on which its answer is searched, the
// page's long-answer candidates, and the annotators' answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// A range of the page, in bytes of its HTML and in tokens. Ends are exclusive. A range that is not
// given is -1, -1. As in nq_eval, bytes or tokens are enough to define a span.
struct NqSpan {
  int64_t start_byte = -1, end_byte = -1;
  int64_t start_token = -1, end_token = -1;

  bool has_bytes() const { return start_byte >= 0 && end_byte >= 0; }
  bool has_tokens() const { return start_token >= 0 && end_token >= 0; }
  bool is_null() const {
    return start_byte < 0 && end_byte < 0 && start_token < 0 && end_token < 0;
  }
  bool operator==(const NqSpan&) const = default;
};

enum class YesNo : uint8_t { kNone, kYes, kNo };

// Returns the value for "YES", "NO" or "NONE" in any case, or nothing.
std::optional<YesNo> yes_no_of(std::string_view text);
// Returns "YES", "NO" or "NONE".
std::string_view name_of(YesNo answer);

// A part of the page that can be a long answer.
struct NqCandidate {
  NqSpan span;
  bool top_level = false;  // false: inside another candidate
};

// The answers of one annotator.
struct NqAnnotation {
  NqSpan long_answer;      // null if the page has no answer
  int64_t candidate = -1;  // index of the long answer in NqRecord::candidates
  std::vector<NqSpan> short_answers;
  YesNo yes_no = YesNo::kNone;
};

// The tokens of a page.
class NqDocument {
 public:
  void add(std::string_view token, bool is_html);
  void clear();
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::string_view token(int64_t index) const;
  // Returns true for a tag, which is not part of the text.
  bool is_html(int64_t index) const { return tokens_[index].is_html; }

 private:
  struct Token {
    uint32_t end;  // in bytes of text_
    bool is_html;
  };

  std::string text_;  // all tokens, one after the other
  std::vector<Token> tokens_;
};

struct NqRecord {
  int64_t example_id = 0;
  std::string question;
  NqDocument document;
  std::vector<NqCandidate> candidates;
  std::vector<NqAnnotation> annotations;
};

}  // namespace bert_qa
