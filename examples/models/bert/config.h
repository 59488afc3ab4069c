// Defines the configuration of a BERT.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bert {

// The configuration. If a config file may omit a key, the default is Hugging Face's. Sizes are
// required.
struct Config {
  std::string model_type = "bert";  // or "megatron-bert", which is pre-LN
  std::vector<std::string> architectures;
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  int64_t pad_token_id = 0;
  std::string hidden_act = "gelu";  // exact (erf); "gelu_new" for tanh
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  int64_t answer_types = 0;  // classes of the answer-type head; 0: the model has no such head

  bool operator==(const Config&) const = default;
};

}  // namespace bert
