// The tokenizer files of a Hugging Face folder: vocab.txt, tokenizer_config.json and
// special_tokens_map.json; or tokenizer.json, where there is no vocab.txt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// With `vocab_file`, that is read instead of the folder's vocab.txt; what the other two files say
// holds for it all the same. They may be missing: an uncased tokenizer with the standard tokens,
// which `notes` then says, for the user to be told once. Without a vocab.txt tokenizer.json says
// all of it, and what tokenizer_config.json says as well must be the same.
// Errors: IoError kIoError if the vocabulary cannot be read; IoError kCorruptData for malformed
//   files; InvalidArgument for a sound file that asks for what a BERT tokenizer does not do here.
WordPieceTokenizer read_tokenizer(const std::filesystem::path& folder,
                                  std::vector<std::string>& notes,
                                  const std::filesystem::path& vocab_file = {});
// Whether the folder says how its text is to be cut, case above all.
bool has_tokenizer_config(const std::filesystem::path& folder);

// The texts of the three files, as this reader and Python `transformers` accept them.
std::string format_vocab(const WordPieceVocab& vocab);
std::string format_tokenizer_config(const WordPieceTokenizer& tokenizer, int64_t model_max_length);
std::string format_special_tokens_map(const WordPieceTokenizer& tokenizer);

}  // namespace bert_qa
