#include "bert_qa/squad/meant_key.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>

namespace bert_qa {
namespace {

// A word that some data sets use for a key of SQuAD.
struct OtherWord {
  std::string_view word, meant;
};
constexpr OtherWord kOtherWords[] = {
    {"rows", "data"},
    {"examples", "data"},
    {"records", "data"},
    {"items", "data"},
    {"entries", "data"},
    {"articles", "data"},
    {"passages", "paragraphs"},
    {"contexts", "paragraphs"},
    {"questions", "qas"},
    {"qa", "qas"},
    {"passage", "context"},
    {"query", "question"},
    {"question_id", "id"},
    {"qid", "id"},
    {"uid", "id"},
    {"_id", "id"},
    {"start", "answer_start"},
    {"answer", "text"},
};

// Returns the key in lower case without separators.
std::string plain(std::string_view key) {
  std::string letters;
  for (const char c : key) {
    if (c == '_' || c == '-' || c == ' ') continue;
    letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return letters;
}

// Returns true if the keys are similar. Short keys may differ less, because they are similar to
// many words.
bool is_like(std::string_view key, std::string_view meant) {
  const std::string is = plain(key), should = plain(meant);
  if (is == should) return true;
  const size_t allowed = should.size() >= 7 ? 2 : should.size() >= 4 ? 1 : 0;
  return fsdp::edit_distance(is, should) <= allowed;
}

}  // namespace

void UnknownKeys::add(std::string_view key) {
  constexpr size_t kMaxKeyBytes = 64;  // a longer key is not similar to any key
  if (++count_ <= kMaxKept && key.size() <= kMaxKeyBytes) keys_.emplace_back(key);
}

std::string_view UnknownKeys::like(std::string_view meant) const {
  const auto near =
      std::ranges::find_if(keys_, [&](const std::string& key) { return is_like(key, meant); });
  if (near != keys_.end()) return *near;
  for (const auto& [word, should_be] : kOtherWords) {
    if (should_be != meant) continue;
    const auto at = std::ranges::find(keys_, word);
    if (at != keys_.end()) return *at;
  }
  return {};
}

std::string UnknownKeys::list() const {
  std::string text;
  for (const std::string& key : keys_) text += " " + fsdp::quoted_name(key);
  if (count_ > keys_.size()) text += fmt::format(" and {} more", count_ - keys_.size());
  return text;
}

std::string misspelled(std::string_view key, std::string_view meant) {
  return fmt::format("the key {} is unknown, expected '{}'", fsdp::quoted_name(key), meant);
}

}  // namespace bert_qa
