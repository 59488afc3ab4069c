#include "bert_qa/hf/model_config.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fsdp/error.h"
#include "support/scratch_folder.h"

namespace bert_qa {
namespace {

// The configuration of the pretrained 6-layer encoder, with its older keys.
const char* const kRealConfig = R"({
  "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
  "architectures": ["BertModel"],
  "attention_probs_dropout_prob": 0.1,
  "gradient_checkpointing": false,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "hidden_size": 384,
  "initializer_range": 0.02,
  "intermediate_size": 1536,
  "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512,
  "model_type": "bert",
  "num_attention_heads": 12,
  "num_hidden_layers": 6,
  "pad_token_id": 0,
  "position_embedding_type": "absolute",
  "transformers_version": "4.8.2",
  "type_vocab_size": 2,
  "use_cache": true,
  "vocab_size": 30522
})";

// Returns the real configuration with one key changed. "-" removes the key.
std::string changed(const char* key, const char* value) {
  nlohmann::json root = nlohmann::json::parse(kRealConfig);
  if (std::string_view(value) == "-") {
    root.erase(key);
  } else {
    root[key] = nlohmann::json::parse(value);
  }
  return root.dump();
}

template <typename ErrorType>
std::string config_refusal(const std::string& text, fsdp::ExitCode code) {
  try {
    parse_model_config(text, "m/config.json");
  } catch (const ErrorType& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("A real configuration is read value by value") {
  const bert::Config config = parse_model_config(kRealConfig, "config.json");
  CHECK(config.model_type == "bert");
  CHECK(config.architectures == std::vector<std::string>{"BertModel"});
  CHECK(config.vocab_size == 30522);
  CHECK(config.hidden_size == 384);
  CHECK(config.num_hidden_layers == 6);
  CHECK(config.num_attention_heads == 12);
  CHECK(config.intermediate_size == 1536);
  CHECK(config.max_position_embeddings == 512);
  CHECK(config.layer_norm_eps == 1e-12);
  CHECK(config.hidden_act == "gelu");
}

TEST_CASE("A configuration survives being written and read") {
  bert::Config config{.model_type = "megatron-bert",
                      .architectures = {"MegatronBertForQuestionAnswering"},
                      .vocab_size = 50176,
                      .hidden_size = 96,
                      .num_hidden_layers = 3,
                      .num_attention_heads = 4,
                      .intermediate_size = 100,
                      .max_position_embeddings = 40,
                      .type_vocab_size = 1,
                      .pad_token_id = 7,
                      .hidden_act = "gelu_new",
                      .hidden_dropout_prob = 0.25,
                      .attention_probs_dropout_prob = 0,
                      .layer_norm_eps = 1e-5,
                      .initializer_range = 0.3};
  CHECK(parse_model_config(format_model_config(config), "f") == config);
  CHECK(parse_model_config(format_model_config({}), "f") == bert::Config{});
  config.architectures = {"MegatronBertForNaturalQuestions"};
  config.answer_types = 5;
  CHECK(parse_model_config(format_model_config(config), "f") == config);
}

TEST_CASE("Keys that may be missing have Hugging Face's defaults") {
  const bert::Config config = parse_model_config(
      R"({"model_type":"bert","vocab_size":10,"hidden_size":4,"num_hidden_layers":1,)"
      R"("num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":16,)"
      R"("pad_token_id":null,"architectures":null})",
      "f");
  CHECK(config.type_vocab_size == 2);
  CHECK(config.hidden_dropout_prob == 0.1);
  CHECK(config.layer_norm_eps == 1e-12);
  CHECK(config.pad_token_id == 0);
}

TEST_CASE("A configuration with wrong values is corrupt data, named by key") {
  struct Case {
    const char *key, *value, *expected;
  };
  const Case cases[] = {
      {"hidden_size", "-", "hidden_size is missing (m/config.json)"},
      {"vocab_size", "-", "vocab_size is missing"},
      {"num_hidden_layers", "-", "num_hidden_layers is missing"},
      {"max_position_embeddings", "-", "max_position_embeddings is missing"},
      {"model_type", "-", "model_type is missing"},
      {"model_type", "3", "model_type is '3', expected a string"},
      {"hidden_size", "0", "hidden_size is '0', expected 1 to 131072"},
      {"hidden_size", "-384", "hidden_size is '-384', expected 1"},
      {"hidden_size", "384.0", "hidden_size is '384.0', expected an integer"},
      {"hidden_size", "\"384\"", "expected an integer"},
      {"hidden_size", "null", "hidden_size is 'null', expected an integer"},
      {"hidden_size", "[384]", "expected an integer"},
      {"hidden_size", "true", "expected an integer"},
      {"hidden_size", "18446744073709551615", "expected 1 to 131072"},
      {"hidden_size", "385", "hidden_size 385 is not a multiple of num_attention_heads 12"},
      {"num_attention_heads", "0", "num_attention_heads is '0'"},
      {"num_hidden_layers", "1000000000", "num_hidden_layers is '1000000000'"},
      {"vocab_size", "4294967296", "vocab_size is '4294967296', expected 1 to 16777216"},
      {"intermediate_size", "-1", "intermediate_size is '-1'"},
      {"max_position_embeddings", "0", "max_position_embeddings is '0'"},
      {"type_vocab_size", "0", "type_vocab_size is '0'"},
      {"pad_token_id", "30522", "pad_token_id is '30522', expected 0 to 30521"},
      {"pad_token_id", "-1", "pad_token_id is '-1'"},
      {"hidden_dropout_prob", "1.5", "hidden_dropout_prob is '1.5', expected 0 to 1"},
      {"hidden_dropout_prob", "-0.1", "hidden_dropout_prob is '-0.1'"},
      {"attention_probs_dropout_prob", "\"0.1\"", "expected a number"},
      {"layer_norm_eps", "null", "layer_norm_eps is 'null', expected a number"},
      {"architectures", "\"BertModel\"", "expected an array of strings"},
      {"architectures", "[1]", "expected an array of strings"},
      {"is_decoder", "1", "is_decoder is '1', expected true or false"},
  };
  for (const auto& [key, value, expected] : cases) {
    const std::string said =
        config_refusal<fsdp::IoError>(changed(key, value), fsdp::ExitCode::kCorruptData);
    CAPTURE(std::string(key));
    CAPTURE(said);
    CHECK(said.find(expected) != said.npos);
  }
  CHECK(config_refusal<fsdp::IoError>("[]", fsdp::ExitCode::kCorruptData) ==
        "the configuration is not a JSON object (m/config.json)");
  CHECK(config_refusal<fsdp::IoError>("{\"a\":1,\n\"a\":2}", fsdp::ExitCode::kCorruptData) ==
        "the key 'a' appears twice in one object (m/config.json, line 2, byte 10)");
  CHECK(config_refusal<fsdp::IoError>(std::string(2'000'000, ' '), fsdp::ExitCode::kCorruptData) ==
        "the configuration has 2000000 bytes, at most 1048576 are allowed (m/config.json)");
}

TEST_CASE("A sound configuration of another model is refused with what is supported") {
  const auto said = [](const char* key, const char* value) {
    return config_refusal<fsdp::InvalidArgument>(changed(key, value),
                                                 fsdp::ExitCode::kConfiguration);
  };
  CHECK(said("model_type", "\"llama\"") ==
        "model_type 'llama' is not supported (m/config.json); hint: use a bert or megatron-bert "
        "model");
  CHECK(said("hidden_act", "\"relu\"") ==
        "hidden_act 'relu' is not supported (m/config.json); hint: use a model with gelu or "
        "gelu_new");
  CHECK(said("position_embedding_type", "\"relative_key\"") ==
        "position_embedding_type 'relative_key' is not supported (m/config.json); hint: use a "
        "model with absolute positions");
  CHECK(said("is_decoder", "true") ==
        "is_decoder 'true' is not supported (m/config.json); hint: use an encoder-only model");
}

TEST_CASE("A missing configuration is an I/O error with the path") {
  const fsdp::ScratchFolder folder;
  try {
    read_model_config(folder / "config.json");
    FAIL("accepted");
  } catch (const fsdp::IoError& error) {
    CHECK(error.code() == fsdp::ExitCode::kIoError);
    CHECK(error.text().where == (folder / "config.json").string());
    CHECK(error.text().cause == "No such file or directory");
  }
}

}  // namespace
}  // namespace bert_qa
