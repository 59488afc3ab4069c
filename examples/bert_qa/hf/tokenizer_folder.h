// Reads and writes the tokenizer files of a Hugging Face folder: vocab.txt, tokenizer_config.json
// and special_tokens_map.json. If there is no vocab.txt, reads tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// Reads a tokenizer. `vocab_file` replaces the folder's vocab.txt; the other two files still apply.
// If those are missing, the tokenizer is uncased and has the standard tokens, and a note for the
// user is added to `notes`. If there is no vocab.txt, everything is read from tokenizer.json.
// Values that tokenizer_config.json repeats must be equal.
// Errors: IoError kIoError if the vocabulary cannot be read; IoError kCorruptData if a file is
//   malformed; InvalidArgument if a valid file needs features that a BERT tokenizer does not have.
WordPieceTokenizer read_tokenizer(const std::filesystem::path& folder,
                                  std::vector<std::string>& notes,
                                  const std::filesystem::path& vocab_file = {});
// Returns true if the folder has a tokenizer_config.json, which says whether text is lower-cased.
bool has_tokenizer_config(const std::filesystem::path& folder);

// Return the texts of the three files. This reader and Python's transformers accept them.
std::string format_vocab(const WordPieceVocab& vocab);
std::string format_tokenizer_config(const WordPieceTokenizer& tokenizer, int64_t model_max_length);
std::string format_special_tokens_map(const WordPieceTokenizer& tokenizer);

}  // namespace bert_qa
