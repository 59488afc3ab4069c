// Scans a text without special tokens in one pass. It converts characters to words and words to
// pieces.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// A scan of one text. The object is on the stack and appends to the given token list.
class TextScan {
 public:
  TextScan(const WordPieceTokenizer& tokenizer, TokenList& tokens)
      : tokenizer_(tokenizer), tokens_(tokens) {}

  // Scans `text`. `first` is the index of its first code point in the whole text. Returns the
  // index of the code point after `text`.
  int32_t scan(std::string_view text, int32_t first);

 private:
  using AsciiKind = WordPieceTokenizer::AsciiKind;

  static constexpr int32_t kMaxWordChars = 100;
  // A character may be replaced by up to four bytes, and the last character by up to 255.
  static constexpr int32_t kWordCapacity = 4 * kMaxWordChars + 256;

  // A character in a sequence of combining marks that must be ordered.
  struct Mark {
    char32_t code_point;
    int combining_class;
    bool inserted;  // not the first character in the decomposition of its source
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
  int32_t code_point_ = 0;  // index of its code point in the whole text

  // The current word. It is not used for plain ASCII words.
  int32_t word_size_ = 0;
  int32_t word_chars_ = 0;  // characters beyond kMaxWordChars are counted but not stored
  int32_t word_last_ = 0;   // source of the last byte
  char word_[kWordCapacity];
  int32_t source_[kWordCapacity];  // source code point of each byte
};

}  // namespace bert_qa
