// Reads tokenizer.json, the file of Hugging Face's `tokenizers`: the vocabulary of a BERT and its
// normalisation of text.
#pragma once

#include <string>
#include <string_view>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// The content of a tokenizer.json.
struct TokenizerFile {
  WordPieceVocab vocab;
  TokenizerOptions options;
};

// Parses the file. Every part that affects ids must be BERT's: BertNormalizer with clean_text,
// BertPreTokenizer, WordPiece with "##" and words of at most 100 characters, no added tokens except
// `special`, pairs as [CLS] A [SEP] B [SEP]. Truncation, padding and decoder are ignored, because
// windows and slices of the context replace them.
// Errors: IoError kCorruptData for malformed files; InvalidArgument with the part's name, for a
//   valid file of another tokenizer.
TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& file,
                                   const SpecialTokens& special = {});

}  // namespace bert_qa
