// What must hold of tokens, windows and vocabularies, whatever bytes they were made from.
#pragma once

#include <string_view>

#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// All throw Finding for what does not hold.

// Every token is found by name and by its piece; writing and reading it changes nothing.
void check_vocabulary(const WordPieceVocab& vocab);
// The first byte picks one of four tokenizers, the rest is the text.
void check_tokens(std::string_view bytes);
// Features in short windows and their batch. Errors: also InvalidArgument for a question that
// leaves no room.
void check_windows(const QaDataset& dataset);

}  // namespace bert_qa
