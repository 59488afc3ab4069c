// Adds the tokens of the Natural Questions baseline to a vocabulary.
#pragma once

#include <string>
#include <vector>

#include "bert_qa/text/wordpiece_vocab.h"

namespace bert_qa {

// The highest position of a candidate among those of its kind. Later candidates have it, too.
inline constexpr int kMaxNqPosition = 50;

// Returns the baseline's tokens, the most important first: [Q] before a question, [ContextId=N]
// with a candidate's index and [Paragraph=N], [Table=N], [List=N] or [Other=N] with its position
// before a candidate, and [ContextId=-1] [NoLongAnswer] at the begin of each page.
std::vector<std::string> nq_tokens();

// Returns the vocabulary with the baseline's tokens in place of its [unusedN] entries, in the order
// of ids. Ids of other tokens do not change. A vocabulary that already has [Q] is returned
// unchanged. Appends a line for the user to `notes`.
WordPieceVocab with_nq_tokens(const WordPieceVocab& vocab, std::vector<std::string>& notes);

}  // namespace bert_qa
