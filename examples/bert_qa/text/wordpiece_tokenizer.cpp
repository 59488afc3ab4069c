#include "bert_qa/text/wordpiece_tokenizer.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "bert_qa/text/text_scan.h"
#include "bert_qa/text/unicode_text.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

NormalizationOptions normalization(const TokenizerOptions& options) {
  return {.space_chinese_characters = options.tokenize_chinese_chars,
          .strip_accents = options.strip_accents.value_or(options.do_lower_case),
          .lower_case = options.do_lower_case};
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(WordPieceVocab vocab, const TokenizerOptions& options)
    : vocab_(std::move(vocab)),
      options_(options),
      table_(normalization(options)),
      trie_(vocab_, /*fold_ascii_case=*/options.do_lower_case) {
  for (int c = 0; c < 256; ++c) {
    kinds_[c] = AsciiKind::kNotAscii;
    if (c >= 0x80) continue;
    switch (table_.entry(c).kind) {
      case CharKind::kSpace:
        kinds_[c] = AsciiKind::kSpace;
        break;
      case CharKind::kSingle:
        kinds_[c] = AsciiKind::kSingle;
        break;
      case CharKind::kDropped:
        kinds_[c] = AsciiKind::kDropped;
        break;
      default:
        kinds_[c] = AsciiKind::kWord;
    }
    const bool capital = options.do_lower_case && c >= 'A' && c <= 'Z';
    lower_[c] = static_cast<uint8_t>(capital ? c - 'A' + 'a' : c);
  }
  for (const int32_t id : vocab_.special_ids()) {
    const char first = vocab_.token(id).front();
    if (special_starts_.find(first) == std::string::npos) special_starts_ += first;
  }
}

// Returns the leftmost special token at or after `from`. If several begin at the same position,
// returns the longest.
WordPieceTokenizer::Special WordPieceTokenizer::find_special(std::string_view text,
                                                             size_t from) const {
  for (size_t at = from;; ++at) {
    at = special_starts_.size() == 1 ? text.find(special_starts_[0], at)
                                     : text.find_first_of(special_starts_, at);
    if (at == std::string_view::npos) return {};
    const std::string_view rest = text.substr(at);
    Special best;
    size_t best_size = 0;
    for (const int32_t id : vocab_.special_ids()) {
      const std::string& token = vocab_.token(id);
      if (token.size() <= best_size || !rest.starts_with(token)) continue;
      best = {at, id};
      best_size = token.size();
    }
    if (best_size > 0) return best;
  }
}

void WordPieceTokenizer::tokenize(std::string_view text, TokenList& tokens) const {
  if (text.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("a text to tokenize has {} bytes, the limit is 2^31 - 1", text.size()),
         .hint = "split the text"});
  }
  tokens.clear();
  TextScan scan(*this, tokens);
  int32_t code_point = 0;
  size_t at = 0;
  for (;;) {
    const Special special = find_special(text, at);
    code_point = scan.scan(text.substr(at, special.at - at), code_point);
    if (special.at == std::string_view::npos) return;
    const std::string& token = vocab_.token(special.id);
    const auto length = static_cast<int32_t>(count_code_points(token));
    tokens.ids.push_back(special.id);
    tokens.spans.push_back({code_point, code_point + length});
    code_point += length;
    at = special.at + token.size();
  }
}

TokenList WordPieceTokenizer::tokenize(std::string_view text) const {
  TokenList tokens;
  tokenize(text, tokens);
  return tokens;
}

}  // namespace bert_qa
