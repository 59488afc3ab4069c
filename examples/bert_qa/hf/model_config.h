// What a Hugging Face config.json says about a BERT.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "models/bert/config.h"

namespace bert_qa {

// Reads config.json; keys that are not ours are left alone.
// Errors: IoError kCorruptData naming the key for values that are missing, of the wrong type or out
//         of bounds (checked before anyone allocates by them); InvalidArgument for a model that is
//         sound but not one of these two, or that uses what they do not have.
bert::Config parse_model_config(std::string_view text, const std::string& file);
// Errors: also IoError kIoError if the file cannot be read.
bert::Config read_model_config(const std::filesystem::path& file);

// The text of a config.json that this reader and Python `transformers` accept.
std::string format_model_config(const bert::Config& config);

}  // namespace bert_qa
