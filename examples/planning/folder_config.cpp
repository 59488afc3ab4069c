#include "planning/folder_config.h"

#include <fmt/format.h>
#include <fsdp/whole_file.h>

#include <algorithm>
#include <string>

#include "bert_qa/hf/config_reader.h"
#include "bert_qa/hf/model_config.h"

namespace planning {
namespace {

using bert_qa::ConfigReader;

void require_multiple(const ConfigReader& reader, const char* key, int64_t value, const char* of,
                      int64_t divisor) {
  if (value % divisor == 0) return;
  reader.corrupt(fmt::format("{} {} is not a multiple of {} {}", key, value, of, divisor));
}

// Reads the configuration of a GPT-2. Its dropout is ignored, because the examples' model has none.
// With dropout, a mask for each layer would need more memory than the plan shows.
gpt::GptConfig gpt2_of(const ConfigReader& reader) {
  if (!reader.flag_or("tie_word_embeddings", true)) {
    reader.unsupported("tie_word_embeddings", "false",
                       "use a gpt2 with tied embeddings (tie_word_embeddings = true)");
  }
  if (reader.flag("add_cross_attention")) {
    reader.unsupported("add_cross_attention", "true", "use a decoder-only model");
  }
  gpt::GptConfig config{
      .layers = reader.size("n_layer", 1, bert_qa::kMaxLayers),
      .hidden = reader.size("n_embd", 1, bert_qa::kMaxHidden),
      .heads = reader.size("n_head", 1, bert_qa::kMaxHidden),
      .block_size = reader.size("n_positions", 1, bert_qa::kMaxPositions),
      .vocabulary = reader.size("vocab_size", 1, bert_qa::kMaxVocabulary),
  };
  if (reader.has("n_inner")) config.mlp = reader.size("n_inner", 1, 4 * bert_qa::kMaxHidden);
  require_multiple(reader, "n_embd", config.hidden, "n_head", config.heads);
  return config;
}

// Reads the configuration of a model with the structure of a Llama. The fields in which the
// families differ keep their defaults.
llama::LlamaConfig llama_of(const ConfigReader& reader) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (reader.flag(key)) reader.unsupported(key, "true", "use a model without these biases");
  }
  llama::LlamaConfig config{
      .layers = reader.size("num_hidden_layers", 1, bert_qa::kMaxLayers),
      .hidden = reader.size("hidden_size", 1, bert_qa::kMaxHidden),
      .heads = reader.size("num_attention_heads", 1, bert_qa::kMaxHidden),
      .intermediate = reader.size("intermediate_size", 1, 4 * bert_qa::kMaxHidden),
      .vocabulary = reader.size("vocab_size", 1, bert_qa::kMaxVocabulary),
      .longest = reader.size("max_position_embeddings", 1, bert_qa::kMaxPositions),
      .rope_theta = reader.number_or("rope_theta", 10000, 1, 1e12),
      .norm_epsilon = reader.number_or("rms_norm_eps", 1e-5, 0, 1),
      .ties_head = reader.flag("tie_word_embeddings"),
  };
  config.key_value_heads = reader.has("num_key_value_heads")
                               ? reader.size("num_key_value_heads", 1, config.heads)
                               : config.heads;
  if (reader.has("head_dim")) {
    config.head_size = reader.size("head_dim", 1, bert_qa::kMaxHidden);
  } else {
    require_multiple(reader, "hidden_size", config.hidden, "num_attention_heads", config.heads);
  }
  require_multiple(reader, "num_attention_heads", config.heads, "num_key_value_heads",
                   config.key_value_heads);
  if (config.size_of_head() % 2 != 0) {
    reader.corrupt(
        fmt::format("a head has {} elements, expected an even number", config.size_of_head()));
  }
  return config;
}

// A plan has attention to all earlier tokens, so sequences end with the sliding window.
void limit_to_window(const ConfigReader& reader, llama::LlamaConfig& config) {
  if (!reader.has("sliding_window")) return;
  config.longest =
      std::min(config.longest, reader.size("sliding_window", 1, bert_qa::kMaxPositions));
}

llama::LlamaConfig mistral_of(const ConfigReader& reader) {
  llama::LlamaConfig config = llama_of(reader);
  config.family = "mistral";
  limit_to_window(reader, config);
  return config;
}

llama::LlamaConfig qwen_of(const ConfigReader& reader, bool is_third) {
  llama::LlamaConfig config = llama_of(reader);
  config.family = is_third ? "qwen3" : "qwen2";
  config.has_biases = !is_third;
  config.normalizes_heads = is_third;
  if (reader.flag("use_sliding_window")) limit_to_window(reader, config);
  return config;
}

}  // namespace

FolderConfig read_folder(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  const std::string text = fsdp::read_file(file);
  const ConfigReader reader(text, file.string());
  const std::string hint = "use bert, megatron-bert, gpt2, llama, mistral, qwen2 or qwen3";
  if (!reader.has("model_type")) reader.corrupt("model_type is missing", hint);
  const std::string type = reader.text_or("model_type", {});
  if (type == "bert" || type == "megatron-bert") {
    return bert_qa::parse_model_config(text, file.string());
  }
  if (type == "gpt2") return gpt2_of(reader);
  if (type == "llama") return llama_of(reader);
  if (type == "mistral") return mistral_of(reader);
  if (type == "qwen2" || type == "qwen3") return qwen_of(reader, type == "qwen3");
  reader.unsupported("model_type", type, hint);
}

}  // namespace planning
