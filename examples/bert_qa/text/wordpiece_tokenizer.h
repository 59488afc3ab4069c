// Implements BERT's WordPiece tokenizer, cased and uncased: text to ids, each with its place in the
// text.
//
// Ids and offsets are equal to those of Hugging Face's BertWordPieceTokenizer without added special
// tokens. It drops control characters, separates Chinese characters, strips accents and lower-cases
// (as options require), splits on white space and punctuation, and matches the longest piece first.
// A word without pieces, or with more than 100 characters, is [UNK]. A special token in the text is
// that token.
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

// A range of code points [begin, end) of the given text.
struct TokenSpan {
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

// The tokens of a text.
struct TokenList {
  std::vector<int32_t> ids;
  std::vector<TokenSpan> spans;  // as many as ids

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  void clear() {
    ids.clear();
    spans.clear();
  }
};

// The options, with the names of tokenizer_config.json.
struct TokenizerOptions {
  bool do_lower_case = true;
  std::optional<bool> strip_accents;  // not given: as do_lower_case
  bool tokenize_chinese_chars = true;
};

// The tokenizer. Immutable after construction.
class WordPieceTokenizer {
 public:
  explicit WordPieceTokenizer(WordPieceVocab vocab, const TokenizerOptions& options = {});

  // Replaces the content of `tokens` and reuses its memory. Thread-safe. Each byte of malformed
  // UTF-8 counts as one dropped character.
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
