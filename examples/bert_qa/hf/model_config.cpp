#include "bert_qa/hf/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "fsdp/error.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/printable_name.h"

namespace bert_qa {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 20;

// Far beyond any model, and small enough that no product of two of them overflows.
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxLayers = 1 << 12;
constexpr int64_t kMaxPositions = 1 << 20;

class ConfigReader {
 public:
  ConfigReader(const json& root, const std::string& file) : root_(root), file_(file) {}

  int64_t size(const char* key, int64_t min, int64_t max) const {
    const json& value = required(key);
    if (!value.is_number_integer()) refuse(key, value, "an integer");
    const bool too_large =
        value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max);
    if (too_large || value.get<int64_t>() < min) {
      refuse(key, value, fmt::format("from {} to {}", min, max));
    }
    return value.get<int64_t>();
  }
  int64_t size_or(const char* key, int64_t fallback, int64_t min, int64_t max) const {
    return root_.contains(key) ? size(key, min, max) : fallback;
  }
  double number_or(const char* key, double fallback, double min, double max) const {
    if (!root_.contains(key)) return fallback;
    const json& value = root_.at(key);
    if (!value.is_number()) refuse(key, value, "a number");
    const auto number = value.get<double>();
    if (!(number >= min && number <= max)) {
      refuse(key, value, fmt::format("from {} to {}", min, max));
    }
    return number;
  }
  std::string text_or(const char* key, std::optional<std::string> fallback) const {
    if (fallback && !root_.contains(key)) return *fallback;
    const json& value = required(key);
    if (!value.is_string()) refuse(key, value, "a string");
    return value.get<std::string>();
  }
  bool flag(const char* key) const {
    if (!root_.contains(key)) return false;
    const json& value = root_.at(key);
    if (!value.is_boolean()) refuse(key, value, "true or false");
    return value.get<bool>();
  }
  std::vector<std::string> names(const char* key) const {
    std::vector<std::string> names;
    if (!root_.contains(key) || root_.at(key).is_null()) return names;
    const json& list = root_.at(key);
    if (!list.is_array()) refuse(key, list, "an array of strings");
    for (const json& name : list) {
      if (!name.is_string()) refuse(key, list, "an array of strings");
      names.push_back(name.get<std::string>());
    }
    return names;
  }

  [[noreturn]] void refuse(const char* key, const json& value, const std::string& expected) const {
    corrupt(fmt::format("{} is {} instead of {}", key, fsdp::quoted_name(value.dump()), expected));
  }
  [[noreturn]] void corrupt(std::string what, std::string hint = {}) const {
    throw fsdp::IoError(
        fsdp::ExitCode::kCorruptData,
        {.what = std::move(what), .where = file_, .cause = {}, .hint = std::move(hint)});
  }
  [[noreturn]] void unsupported(const char* key, const std::string& value, std::string hint) const {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("{} {} is not supported", key, fsdp::quoted_name(value)),
         .where = file_,
         .cause = {},
         .hint = std::move(hint)});
  }

 private:
  const json& required(const char* key) const {
    if (!root_.contains(key)) corrupt(fmt::format("{} is missing", key));
    return root_.at(key);
  }

  const json& root_;
  const std::string& file_;
};

// What our two models do not have must not be ignored: the results would be quietly wrong.
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
    if (reader.flag(key)) reader.unsupported(key, "true", "use an encoder");
  }
}

}  // namespace

bert::Config parse_model_config(std::string_view text, const std::string& file) {
  if (std::ssize(text) > kMaxConfigBytes) {
    throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                        {.what = fmt::format("a configuration of {} bytes; at most {} are allowed",
                                             text.size(), kMaxConfigBytes),
                         .where = file,
                         .cause = {},
                         .hint = {}});
  }
  const json root = fsdp::parse_json({.text = text, .file = file});
  const ConfigReader reader(root, file);
  if (!root.is_object()) reader.corrupt("the configuration is not a JSON object");
  if (!root.contains("model_type")) {
    reader.corrupt("model_type is missing", "add \"model_type\": \"bert\" if it is one");
  }
  bert::Config config;
  config.model_type = reader.text_or("model_type", {});
  config.hidden_act = reader.text_or("hidden_act", config.hidden_act);
  check_supported(reader, config);
  config.architectures = reader.names("architectures");
  config.vocab_size = reader.size("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = reader.size("hidden_size", 1, kMaxHidden);
  config.num_hidden_layers = reader.size("num_hidden_layers", 1, kMaxLayers);
  config.num_attention_heads = reader.size("num_attention_heads", 1, kMaxHidden);
  config.intermediate_size = reader.size("intermediate_size", 1, 4 * kMaxHidden);
  config.max_position_embeddings = reader.size("max_position_embeddings", 1, kMaxPositions);
  config.type_vocab_size = reader.size_or("type_vocab_size", config.type_vocab_size, 1, kMaxHidden);
  if (root.contains("pad_token_id") && !root["pad_token_id"].is_null()) {
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
  const fsdp::MappedFile mapping(file);
  return parse_model_config(mapping.text(), file.string());
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
