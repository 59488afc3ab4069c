// tokenizer.json, the file of Hugging Face's `tokenizers`: of a BERT, its vocabulary and how text
// is normalised.
#pragma once

#include <string>
#include <string_view>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

struct TokenizerFile {
  WordPieceVocab vocab;
  TokenizerOptions options;
};

// Every part that decides about ids must be BERT's: BertNormalizer with clean_text,
// BertPreTokenizer, WordPiece with "##" and words of at most 100 characters, no added tokens but
// `special`, pairs as [CLS] A [SEP] B [SEP]. What is known and decides nothing here is not looked
// at: truncation, padding and decoder, in whose place stand windows and answers that are cut from
// their text.
// Errors: IoError kCorruptData for what is malformed; InvalidArgument, naming the part, for a sound
//   file of another tokenizer.
TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& file,
                                   const SpecialTokens& special = {});

}  // namespace bert_qa
