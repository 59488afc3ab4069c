// Reads and writes the config.json of a BERT, as Hugging Face defines it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "models/bert/config.h"

namespace bert_qa {

// Parses config.json and ignores other keys.
// Errors: IoError kCorruptData with the key, for values that are missing, of the wrong type or out
//         of bounds; InvalidArgument for a valid model that is neither bert nor megatron-bert, or
//         that uses a feature that these two lack.
bert::Config parse_model_config(std::string_view text, const std::string& file);
// Reads and parses the file. Errors: also IoError kIoError if the file cannot be read.
bert::Config read_model_config(const std::filesystem::path& file);

// Returns the text of a config.json that this reader and Python `transformers` accept.
std::string format_model_config(const bert::Config& config);

}  // namespace bert_qa
