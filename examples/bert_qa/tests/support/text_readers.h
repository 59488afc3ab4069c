// Checks invariants of tokens, windows and vocabularies that hold for all input bytes.
#pragma once

#include <string_view>

#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// Each function throws Finding if an invariant is violated.

// Checks that every token is found by its name and by its piece. Checks that the vocabulary is
// unchanged after it is written and read.
void check_vocabulary(const WordPieceVocab& vocab);
// Checks the tokens of a text. The first byte selects one of four tokenizers. The remaining bytes
// are the text.
void check_tokens(std::string_view bytes);
// Checks the features of short windows and their batch.
// Errors: also InvalidArgument if a question leaves no space for its context.
void check_windows(const QaDataset& dataset);

}  // namespace bert_qa
