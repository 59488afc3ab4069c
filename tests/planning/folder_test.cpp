// Tests plans of Hugging Face folders.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <utility>

#include "planning/known_model.h"
#include "planning/support/plan_words.h"
#include "support/scratch_folder.h"

using namespace fsdp;
using namespace fsdp::testing;
using namespace planning;

TEST_CASE("a folder is planned by its configuration alone") {
  const auto parameters = [](std::string_view config) {
    const ScratchFolder folder;
    folder.write("config.json", config);
    return parameters_of(folder.path());
  };
  CHECK(parameters(R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
                       "n_positions": 1024, "vocab_size": 50257, "n_inner": null})") ==
        124'439'808);
  CHECK(parameters(R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2,
                       "n_positions": 16, "vocab_size": 10, "n_inner": 16})") ==
        10 * 8 + 16 * 8 + 4 * 8 + 8 * 24 + 24 + 8 * 8 + 8 + 2 * 8 * 16 + 16 + 8 + 2 * 8);
  CHECK(parameters(R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
                       "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
                       "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
                       "tie_word_embeddings": false})") == 6'738'415'616);
  CHECK(parameters(R"({"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048,
                       "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
                       "intermediate_size": 8192, "vocab_size": 128256,
                       "max_position_embeddings": 131072, "tie_word_embeddings": true})") ==
        1'235'814'400);
  CHECK(parameters(R"({"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768,
                       "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
                       "max_position_embeddings": 512})") == 108'893'186);
}

TEST_CASE("folders of mistral, qwen2, qwen3 and of Natural Questions have their parameters") {
  const auto model_of = [](std::string_view config) {
    const ScratchFolder folder;
    folder.write("config.json", config);
    const KnownModel model = find_model(folder.path());
    return std::pair(parameters_of(folder.path()), model);
  };
  // Mistral-7B-v0.1, Qwen2.5-0.5B, Qwen2.5-7B, Qwen3-0.6B and Qwen3-8B.
  const auto [mistral, of_mistral] =
      model_of(R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
                   "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
                   "intermediate_size": 14336, "max_position_embeddings": 32768,
                   "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
                   "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
                   "sliding_window": 4096, "tie_word_embeddings": false,
                   "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32000})");
  CHECK(mistral == 7'241'732'096);
  CHECK(of_mistral.longest == 4096);  // the sliding window
  CHECK(says(of_mistral.description, "mistral: 32 layers"));
  const auto [small_qwen2, of_small] =
      model_of(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
                   "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
                   "max_position_embeddings": 32768, "max_window_layers": 24,
                   "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
                   "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
                   "sliding_window": 32768, "tie_word_embeddings": true,
                   "use_sliding_window": false, "vocab_size": 151936})");
  CHECK(small_qwen2 == 494'032'768);
  CHECK(of_small.longest == 32768);
  CHECK(model_of(R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
                     "max_position_embeddings": 131072, "num_attention_heads": 28,
                     "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
                     "sliding_window": 131072, "tie_word_embeddings": false,
                     "use_sliding_window": false, "vocab_size": 152064})")
            .first == 7'615'616'512);
  const auto [small_qwen3, of_qwen3] =
      model_of(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
                   "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
                   "intermediate_size": 3072, "max_position_embeddings": 40960,
                   "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
                   "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
                   "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
                   "use_sliding_window": false, "vocab_size": 151936})");
  CHECK(small_qwen3 == 596'049'920);
  CHECK(of_qwen3.attended_width == 28 * 16 * 128);  // wider than the hidden states
  CHECK(model_of(R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128,
                     "hidden_size": 4096, "intermediate_size": 12288,
                     "max_position_embeddings": 40960, "num_attention_heads": 32,
                     "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
                     "tie_word_embeddings": false, "vocab_size": 151936})")
            .first == 8'190'735'360);
  // Natural Questions adds a head with five answer types to BERT.
  const auto nq = model_of(R"({"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768,
                               "architectures": ["BertForNaturalQuestions"],
                               "num_attention_heads": 12, "intermediate_size": 3072,
                               "vocab_size": 30522, "max_position_embeddings": 512})");
  CHECK(nq.first > 108'893'186);
  CHECK(nq.second.counts_samples);
}

TEST_CASE("a folder that is no known model is refused with what is known") {
  const auto refused = [](std::string_view config) {
    const ScratchFolder folder;
    folder.write("config.json", config);
    return refusal_of([&] { find_model(folder.path()); });
  };
  const std::string other = refused(R"({"model_type": "t5"})");
  CHECK(other.starts_with("78 model_type 't5' is not supported"));
  CHECK(says(other, "use bert, megatron-bert, gpt2, llama, mistral, qwen2 or qwen3"));
  CHECK(refused("{}").starts_with("65 model_type is missing"));
  CHECK(refused(R"({"model_type": "llama"})").starts_with("65 num_hidden_layers is missing"));
  CHECK(refused(R"({"model_type": "qwen3", "attention_bias": true})")
            .starts_with("78 attention_bias 'true' is not supported"));
  CHECK(refused(R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 9, "n_head": 2,
                    "n_positions": 16, "vocab_size": 10})")
            .starts_with("65 n_embd 9 is not a multiple of n_head 2"));
  const ScratchFolder empty;
  CHECK(refusal_of([&] { find_model(empty.path()); }).starts_with("74 "));
  const std::string misspelt = refusal_of([] { find_model("lama-70b"); });
  CHECK(misspelt.starts_with("64 --model 'lama-70b' is neither a preset nor a folder"));
  CHECK(says(misspelt, "did you mean llama-70b?"));
}
