// Scans a part of a text without special tokens in one pass: characters to words, words to pieces.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// A scan of one text, on the stack. It appends to the given token list.
class TextScan {
 public:
  TextScan(const WordPieceTokenizer& tokenizer, TokenList& tokens)
      : tokenizer_(tokenizer), tokens_(tokens) {}

  // Scans `text`, whose first code point has number `first` in the whole text. Returns the number
  // of the code point after it.
  int32_t scan(std::string_view text, int32_t first);

 private:
  using AsciiKind = WordPieceTokenizer::AsciiKind;

  static constexpr int32_t kMaxWordChars = 100;
  // A word's characters may be replaced by up to four bytes each, the last one by up to 255.
  static constexpr int32_t kWordCapacity = 4 * kMaxWordChars + 256;

  // A character of a run of combining marks that must be ordered.
  struct Mark {
    char32_t code_point;
    int combining_class;
    bool inserted;  // not the first character of its source's decomposition
  };

  void scan_ascii_word();
  void scan_other();
  size_t begin_of_marks() const;
  void scan_marks();
  void emit_marks(std::vector<Mark>& marks, std::vector<int32_t>& sources, int32_t& source);
  void emit_normalized(char32_t c, int32_t source);

  void append(std::string_view bytes, int32_t source);
  void append_ascii(const char* bytes, int32_t count);
  void end_word();
  template <typename Source>
  void emit_pieces(const char* word, int32_t size, Source source_of);

  const WordPieceTokenizer& tokenizer_;
  TokenList& tokens_;
  std::string_view text_;
  size_t at_ = 0;           // the current byte
  int32_t code_point_ = 0;  // number of its code point in the whole text

  // The current word, unless it is plain ASCII.
  int32_t word_size_ = 0;
  int32_t word_chars_ = 0;  // beyond kMaxWordChars characters are counted but not stored
  int32_t word_last_ = 0;   // source of its last byte
  char word_[kWordCapacity];
  int32_t source_[kWordCapacity];  // source code point of each byte
};

}  // namespace bert_qa
