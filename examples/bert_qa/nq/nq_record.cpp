#include "bert_qa/nq/nq_record.h"

#include <algorithm>
#include <array>

namespace bert_qa {
namespace {

constexpr std::array<std::string_view, 3> kYesNoNames{"NONE", "YES", "NO"};

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

}  // namespace

std::optional<YesNo> yes_no_of(std::string_view text) {
  const auto equal = [](char a, char b) { return upper(a) == b; };
  for (size_t i = 0; i < kYesNoNames.size(); ++i) {
    if (std::ranges::equal(text, kYesNoNames[i], equal)) return static_cast<YesNo>(i);
  }
  return std::nullopt;
}

std::string_view name_of(YesNo answer) { return kYesNoNames[static_cast<size_t>(answer)]; }

void NqDocument::add(std::string_view token, bool is_html) {
  text_ += token;
  tokens_.push_back({.end = static_cast<uint32_t>(text_.size()), .is_html = is_html});
}

void NqDocument::clear() {
  text_.clear();
  tokens_.clear();
}

std::string_view NqDocument::token(int64_t index) const {
  const uint32_t begin = index == 0 ? 0 : tokens_[index - 1].end;
  return std::string_view(text_).substr(begin, tokens_[index].end - begin);
}

}  // namespace bert_qa
