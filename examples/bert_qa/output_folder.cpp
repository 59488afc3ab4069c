#include "output_folder.h"

#include <fsdp/error.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "data/atomic_file.h"
#include "data/tokenizer_folder.h"
#include "model_weights.h"

namespace bert_qa {

void prepare_output_folder(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) {
    throw fsdp::IoError(fsdp::ExitCode::kCannotCreate,
                        {.what = "the output folder cannot be made",
                         .where = folder.string(),
                         .cause = code.message(),
                         .hint = "--output-dir DIR with a folder that you may write"});
  }
  const fsdp::AtomicFile trial(folder / "metrics.json");  // never committed: leaves nothing
}

void save_model(fsdp::Engine& engine, const Inputs& inputs, const std::filesystem::path& folder) {
  save_weights(engine, folder / "model.safetensors");
  if (engine.mesh().rank() != 0) return;
  fsdp::write_file(folder / "config.json", fsdp::format_model_config(inputs.config));
  if (!inputs.tokenizer) return;
  fsdp::write_file(folder / "vocab.txt", fsdp::format_vocab(inputs.tokenizer->vocab()));
  fsdp::write_file(
      folder / "tokenizer_config.json",
      fsdp::format_tokenizer_config(*inputs.tokenizer, inputs.config.max_position_embeddings));
  fsdp::write_file(folder / "special_tokens_map.json",
                   fsdp::format_special_tokens_map(*inputs.tokenizer));
}

void write_json(const std::filesystem::path& file, const nlohmann::ordered_json& json) {
  fsdp::write_file(file, json.dump(2) + "\n");
}

}  // namespace bert_qa
