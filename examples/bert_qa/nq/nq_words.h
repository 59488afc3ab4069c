// Tokenizes the words of Natural Questions, one at a time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// The baseline's tokenizer. A word in square brackets is a token of the vocabulary, or [UNK]. It is
// not split, so text cannot forge a special token's neighbours.
class NqWords {
 public:
  // Requires: the tokenizer outlives this object.
  explicit NqWords(const WordPieceTokenizer& tokenizer);
  // Returns the word's tokens. The reference is valid until the next call.
  const std::vector<int32_t>& ids_of(std::string_view word);

 private:
  const WordPieceTokenizer& tokenizer_;
  TokenList tokens_;
};

}  // namespace bert_qa
