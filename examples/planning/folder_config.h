// Reads the shapes of a model from a Hugging Face folder.
#pragma once

#include <filesystem>
#include <variant>

#include "models/bert/config.h"
#include "models/gpt.h"
#include "models/llama.h"

namespace planning {

using FolderConfig = std::variant<bert::Config, gpt::GptConfig, llama::LlamaConfig>;

// Reads config.json of `folder`, but no weights.
// Errors: as find_model; IoError kIoError if the file cannot be read.
FolderConfig read_folder(const std::filesystem::path& folder);

}  // namespace planning
