// What a Hugging Face folder says about the shapes of its model.
#pragma once

#include <filesystem>
#include <variant>

#include "models/bert/config.h"
#include "models/gpt.h"
#include "models/llama.h"

namespace planning {

using FolderConfig = std::variant<bert::Config, gpt::GptConfig, llama::LlamaConfig>;

// Reads config.json of `folder`; weights are not looked for.
// Errors: as find_model; IoError kIoError if the file cannot be read.
FolderConfig read_folder(const std::filesystem::path& folder);

}  // namespace planning
