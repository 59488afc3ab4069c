// Checks invariants of tokens, windows and vocabularies. They hold for all input bytes.
#pragma once

#include <string_view>

#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// Each function throws Finding if an invariant does not hold.

// Checks that every token is found by its name and by its piece. Also checks that the vocabulary
// does not change when it is written and read again.
void check_vocabulary(const WordPieceVocab& vocab);
// Checks the tokens of a text. The first byte selects one of four tokenizers. The other bytes are
// the text.
void check_tokens(std::string_view bytes);
// Checks the features of short windows, and a batch of these windows. Errors: Finding;
// InvalidArgument if a question leaves no room for context.
void check_windows(const QaDataset& dataset);

}  // namespace bert_qa
