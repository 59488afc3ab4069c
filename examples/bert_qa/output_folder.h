// The folder that a run leaves behind: an ordinary Hugging Face model with its results beside it.
#pragma once

#include <fsdp/engine.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "inputs.h"

namespace bert_qa {

// Makes the folder and sees that a file can be written in it, long before one has to be.
// Errors: IoError kCannotCreate.
void prepare_output_folder(const std::filesystem::path& folder);

// config.json, model.safetensors and the tokenizer's three files. Collective; rank 0 writes.
void save_model(fsdp::Engine& engine, const Inputs& inputs, const std::filesystem::path& folder);

void write_json(const std::filesystem::path& file, const nlohmann::ordered_json& json);

}  // namespace bert_qa
