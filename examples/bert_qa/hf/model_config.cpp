#include "bert_qa/hf/model_config.h"

#include <fmt/format.h>
#include <fsdp/whole_file.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bert_qa/hf/config_reader.h"
#include "bert_qa/nq/answer_type.h"

namespace bert_qa {
namespace {

// Refuses features that neither of the two models has. If they were ignored, the results would be
// wrong without an error.
void check_supported(const ConfigReader& reader, const bert::Config& config) {
  if (config.model_type != "bert" && config.model_type != "megatron-bert") {
    reader.unsupported("model_type", config.model_type, "use a bert or megatron-bert model");
  }
  if (config.hidden_act != "gelu" && config.hidden_act != "gelu_new") {
    reader.unsupported("hidden_act", config.hidden_act, "use a model with gelu or gelu_new");
  }
  const std::string positions = reader.text_or("position_embedding_type", "absolute");
  if (positions != "absolute") {
    reader.unsupported("position_embedding_type", positions, "use a model with absolute positions");
  }
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (reader.flag(key)) reader.unsupported(key, "true", "use an encoder-only model");
  }
}

}  // namespace

bert::Config parse_model_config(std::string_view text, const std::string& file) {
  const ConfigReader reader(text, file);
  if (!reader.has("model_type")) {
    reader.corrupt("model_type is missing", "add \"model_type\": \"bert\" if the model is a BERT");
  }
  bert::Config config;
  config.model_type = reader.text_or("model_type", {});
  config.hidden_act = reader.text_or("hidden_act", config.hidden_act);
  check_supported(reader, config);
  config.architectures = reader.names("architectures");
  const bool has_types = std::ranges::any_of(
      config.architectures, [](const auto& name) { return name.ends_with(kNaturalQuestions); });
  config.answer_types = has_types ? kAnswerTypes : 0;
  config.vocab_size = reader.size("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = reader.size("hidden_size", 1, kMaxHidden);
  config.num_hidden_layers = reader.size("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = reader.size("num_attention_heads", 1, kMaxHidden);
  config.intermediate_size = reader.size("intermediate_size", 1, 4 * kMaxHidden);
  config.max_position_embeddings = reader.size("max_position_embeddings", 1, kMaxPositions);
  config.type_vocab_size = reader.size_or("type_vocab_size", config.type_vocab_size, 1, kMaxHidden);
  if (reader.has("pad_token_id")) {
    config.pad_token_id = reader.size("pad_token_id", 0, config.vocab_size - 1);
  }
  config.hidden_dropout_prob =
      reader.number_or("hidden_dropout_prob", config.hidden_dropout_prob, 0, 1);
  config.attention_probs_dropout_prob =
      reader.number_or("attention_probs_dropout_prob", config.attention_probs_dropout_prob, 0, 1);
  config.layer_norm_eps = reader.number_or("layer_norm_eps", config.layer_norm_eps, 0, 1);
  config.initializer_range =
      reader.number_or("initializer_range", config.initializer_range, 0, 100);
  if (config.hidden_size % config.num_attention_heads != 0) {
    reader.corrupt(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                               config.hidden_size, config.num_attention_heads));
  }
  return config;
}

bert::Config read_model_config(const std::filesystem::path& file) {
  return parse_model_config(fsdp::read_file(file), file.string());
}

std::string format_model_config(const bert::Config& config) {
  const nlohmann::ordered_json root = {
      {"architectures", config.architectures},
      {"attention_probs_dropout_prob", config.attention_probs_dropout_prob},
      {"hidden_act", config.hidden_act},
      {"hidden_dropout_prob", config.hidden_dropout_prob},
      {"hidden_size", config.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", config.intermediate_size},
      {"layer_norm_eps", config.layer_norm_eps},
      {"max_position_embeddings", config.max_position_embeddings},
      {"model_type", config.model_type},
      {"num_attention_heads", config.num_attention_heads},
      {"num_hidden_layers", config.num_hidden_layers},
      {"pad_token_id", config.pad_token_id},
      {"position_embedding_type", "absolute"},
      {"type_vocab_size", config.type_vocab_size},
      {"vocab_size", config.vocab_size},
  };
  return root.dump(2) + "\n";
}

}  // namespace bert_qa
