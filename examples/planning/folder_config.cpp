#include "planning/folder_config.h"

#include <fmt/format.h>

#include "bert_qa/hf/config_reader.h"
#include "bert_qa/hf/model_config.h"
#include "bert_qa/text/text_file.h"

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

llama::LlamaConfig llama_of(const ConfigReader& reader) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (reader.flag(key)) reader.unsupported(key, "true", "use a llama without biases");
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
  require_multiple(reader, "hidden_size", config.hidden, "num_attention_heads", config.heads);
  require_multiple(reader, "num_attention_heads", config.heads, "num_key_value_heads",
                   config.key_value_heads);
  const int64_t head_size = config.hidden / config.heads;
  if (head_size % 2 != 0) {
    reader.corrupt(fmt::format("a head has {} elements, expected an even number", head_size));
  }
  if (reader.has("head_dim") && reader.size("head_dim", 1, bert_qa::kMaxHidden) != head_size) {
    reader.unsupported(
        "head_dim", fmt::format("{}", reader.size("head_dim", 1, 1 << 20)),
        fmt::format("use hidden_size / num_attention_heads, which is {}", head_size));
  }
  return config;
}

}  // namespace

FolderConfig read_folder(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  const std::string text = bert_qa::read_text(file);
  const ConfigReader reader(text, file.string());
  if (!reader.has("model_type")) {
    reader.corrupt("model_type is missing", "use bert, megatron-bert, gpt2 or llama");
  }
  const std::string type = reader.text_or("model_type", {});
  if (type == "bert" || type == "megatron-bert") {
    return bert_qa::parse_model_config(text, file.string());
  }
  if (type == "gpt2") return gpt2_of(reader);
  if (type == "llama") return llama_of(reader);
  reader.unsupported("model_type", type, "use bert, megatron-bert, gpt2 or llama");
}

}  // namespace planning
