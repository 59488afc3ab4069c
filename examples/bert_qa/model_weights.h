// Weights between Hugging Face files and the engine's shards. No rank ever holds a whole model.
#pragma once

#include <fsdp/data.h>
#include <fsdp/engine.h>

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/model_folder.h"
#include "refusal.h"

namespace bert_qa {

// Fills each rank's shards from the mapped files: only this rank's intervals are read. Tensors of
// `head` (may be null) come before the folder's; parameters of a head that no file has keep their
// initial values.
// Returns what a user should be told once: tensors renamed, dropped or left at their initial
// values. Errors: IoError kCorruptData with the names where file and model do not fit together, or
// with the tensor that has a value which is not finite: no step could be taken from there.
std::vector<std::string> load_weights(fsdp::Engine& engine, const fsdp::ModelFolder& folder,
                                      const fsdp::SafetensorsFile* head);

// The same for a randomly initialised model: `head` alone is read.
void load_head(fsdp::Engine& engine, const fsdp::SafetensorsFile& head);

inline constexpr std::string_view kWritingModel = "writing the model";

// Writes all parameters in float32. Collective; rank 0 writes, a unit at a time, and the others
// wait as long as that takes. What fails is in the outcome; the file is then as it was before.
Outcome save_weights(fsdp::Engine& engine, const std::filesystem::path& file);

}  // namespace bert_qa
