// Reads and writes the config.json of a BERT, as Hugging Face defines it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "models/bert/config.h"

namespace bert_qa {

// The end of the architecture's name of a model with the answer types of Natural Questions.
inline constexpr const char* kNaturalQuestions = "NaturalQuestions";

// Parses config.json. Keys that it does not need are ignored.
// Errors: IoError kCorruptData, which names the key, if a value is missing, has the wrong type or
//   is out of bounds. InvalidArgument if the file is valid but the model is neither bert nor
//   megatron-bert, or uses a feature that these two lack.
bert::Config parse_model_config(std::string_view text, const std::string& file);
// Reads and parses the file. Errors: as parse_model_config; IoError kIoError if the file cannot be
// read.
bert::Config read_model_config(const std::filesystem::path& file);

// Returns the text of a config.json that this reader and Python's transformers accept.
std::string format_model_config(const bert::Config& config);

}  // namespace bert_qa
