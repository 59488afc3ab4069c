// Checks invariants of tokens, windows and vocabularies that hold for all input bytes.
#pragma once

#include <string_view>

#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// Each function throws Finding if an invariant does not hold.

// Checks that every token is found by name and by its piece, and that the vocabulary does not
// change when it is written and read.
void check_vocabulary(const WordPieceVocab& vocab);
// Checks the tokens of a text. The first byte selects one of four tokenizers; the rest is the text.
void check_tokens(std::string_view bytes);
// Checks features in short windows and their batch. Errors: also InvalidArgument for a question
// that leaves no room.
void check_windows(const QaDataset& dataset);

}  // namespace bert_qa
