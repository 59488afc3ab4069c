// Implements BERT's WordPiece tokenizer, cased and uncased. It converts text to ids and returns
// each id's position in the text.
//
// Ids and offsets equal those of Hugging Face's BertWordPieceTokenizer without added special
// tokens. The tokenizer drops control characters, separates Chinese characters, strips accents and
// lower-cases (if the options require it), splits on white space and punctuation, and matches the
// longest piece first. A word without pieces or with more than 100 characters becomes [UNK]. The
// text of a special token becomes that token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/text/bert_char_table.h"
#include "bert_qa/text/wordpiece_trie.h"
#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// A range of code points [begin, end) in the tokenized text.
struct TokenSpan {
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

// The tokens of a text.
struct TokenList {
  std::vector<int32_t> ids;
  std::vector<TokenSpan> spans;  // same size as ids

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  void clear() {
    ids.clear();
    spans.clear();
  }
};

// The options. They have the names that tokenizer_config.json uses.
struct TokenizerOptions {
  bool do_lower_case = true;
  std::optional<bool> strip_accents;  // not given: same as do_lower_case
  bool tokenize_chinese_chars = true;
};

// The tokenizer. It is immutable.
class WordPieceTokenizer {
 public:
  explicit WordPieceTokenizer(WordPieceVocab vocab, const TokenizerOptions& options = {});

  // Tokenizes `text`. Replaces the content of `tokens` and reuses its memory. Thread-safe. Each
  // byte of malformed UTF-8 counts as one dropped character.
  // Errors: InvalidArgument if the text has 2^31 bytes or more.
  void tokenize(std::string_view text, TokenList& tokens) const;
  TokenList tokenize(std::string_view text) const;

  const WordPieceVocab& vocab() const { return vocab_; }
  const TokenizerOptions& options() const { return options_; }

 private:
  friend class TextScan;

  enum class AsciiKind : uint8_t { kWord, kSpace, kSingle, kDropped, kNotAscii };
  struct Special {
    size_t at = std::string_view::npos;
    int32_t id = 0;
  };

  Special find_special(std::string_view text, size_t from) const;

  WordPieceVocab vocab_;
  TokenizerOptions options_;
  BertCharTable table_;
  WordPieceTrie trie_;
  std::string special_starts_;  // the first bytes of the special tokens
  AsciiKind kinds_[256];
  uint8_t lower_[128];
};

}  // namespace bert_qa
