// Reads tokenizer.json, the file of Hugging Face's tokenizers library. It holds the vocabulary of a
// BERT and the normalisation of its text.
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
// `special`, and pairs as [CLS] A [SEP] B [SEP]. Truncation, padding and decoder are ignored,
// because this program cuts windows and takes answers from the context itself.
// Errors: IoError kCorruptData if the file is malformed. InvalidArgument, which names the part, if
//   the file is valid but belongs to another tokenizer.
TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& file,
                                   const SpecialTokens& special = {});

}  // namespace bert_qa
