// Reads and writes the tokenizer files of a Hugging Face folder: vocab.txt, tokenizer_config.json
// and special_tokens_map.json; or tokenizer.json, if there is no vocab.txt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// Reads a tokenizer. `vocab_file` replaces the folder's vocab.txt; the other two files still apply.
// If these are missing, the tokenizer is uncased with the standard tokens, and `notes` gets a note
// for the user. Without a vocab.txt everything is read from tokenizer.json, and the values that
// tokenizer_config.json repeats must be the same.
// Errors: IoError kIoError if the vocabulary cannot be read; IoError kCorruptData for malformed
//   files; InvalidArgument for a valid file that needs more than a BERT tokenizer.
WordPieceTokenizer read_tokenizer(const std::filesystem::path& folder,
                                  std::vector<std::string>& notes,
                                  const std::filesystem::path& vocab_file = {});
// Returns true if the folder has a tokenizer_config.json, which defines the case of its text.
bool has_tokenizer_config(const std::filesystem::path& folder);

// Return the texts of the three files, as this reader and Python `transformers` accept them.
std::string format_vocab(const WordPieceVocab& vocab);
std::string format_tokenizer_config(const WordPieceTokenizer& tokenizer, int64_t model_max_length);
std::string format_special_tokens_map(const WordPieceTokenizer& tokenizer);

}  // namespace bert_qa
