// Defines a Llama, which predicts the next token, as ordinary LibTorch modules with some units.
//
// It has the structure of Llama 2 and 3: RMS norms before each block, rotary positions,
// grouped-query attention, a gated MLP (SwiGLU), no biases. Mistral, Qwen2 and Qwen3 differ only in
// the last fields of the configuration. The units are the embedding of the
// tokens (its backward reads no weight), each layer, the head, and the root, which holds the last
// norm. Suffixes of names give shapes: B sequences, S tokens, H hidden, N heads, G heads of keys
// and values, D head size, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/options.h>
#include <fsdp/unit.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

// The sizes of a Llama. Requires: all are positive; `heads` divides `hidden` if head_size is 0;
// `key_value_heads` divides `heads`; the size of a head is even.
struct LlamaConfig {
  int64_t layers = 32;
  int64_t hidden = 4096;
  int64_t heads = 32;
  int64_t key_value_heads = 32;
  int64_t intermediate = 11008;
  int64_t vocabulary = 32000;
  int64_t longest = 4096;  // longest sequence
  double rope_theta = 10000;
  double norm_epsilon = 1e-5;
  bool ties_head = false;         // the head is the tokens' embedding, which is then in the root
  int64_t head_size = 0;          // 0: hidden / heads
  bool has_biases = false;        // of the projections to queries, keys and values (Qwen2)
  bool normalizes_heads = false;  // queries and keys have an RMS norm (Qwen3)
  const char* family = "llama";

  int64_t size_of_head() const { return head_size > 0 ? head_size : hidden / heads; }
};

// Returns "tiny, 7b, 13b, 70b, 3-8b, 3-70b, 3-405b".
std::string preset_names();
// Returns the sizes of a preset. Names that begin with "3-" are Llama 3; the others are Llama 2.
// tiny is only for tests.
// Errors: InvalidArgument kUsage, which names the choices.
LlamaConfig preset_config(const std::string& name);

// The embedding and the head. Their constructors draw initial values, because a unit is sharded
// right after construction.
struct TokensImpl : torch::nn::EmbeddingImpl {
  explicit TokensImpl(const LlamaConfig& config);
};
TORCH_MODULE(Tokens);
struct HeadImpl : torch::nn::LinearImpl {
  explicit HeadImpl(const LlamaConfig& config);
};
TORCH_MODULE(Head);

struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(int64_t hidden, double epsilon);
  at::Tensor forward(const at::Tensor& x);  // computes in float32, returns the dtype of x

  at::Tensor weight;
  double epsilon;
};
TORCH_MODULE(RmsNorm);

// The rotary position factors for the features of a head, each [S,D].
struct Rotation {
  at::Tensor cos_SD, sin_SD;
};

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x_BSH, const Rotation& rotation);

  RmsNorm attention_norm, mlp_norm;
  RmsNorm query_norm{nullptr}, key_norm{nullptr};  // null: heads are not normalized
  torch::nn::Linear query, key, value, attention_out;
  torch::nn::Linear gate, up, down;
  int64_t heads, key_value_heads;

 private:
  at::Tensor attend(const at::Tensor& x_BSH, const Rotation& rotation);
};
TORCH_MODULE(Layer);

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const LlamaConfig& config);
  // Returns the logits [B,S,V] of each token's successor. ids are int64, and S is at most
  // `longest`.
  at::Tensor forward(const at::Tensor& ids_BS);

  std::optional<fsdp::Unit<Tokens>> tokens;
  std::optional<fsdp::Unit<Head>> head;
  Tokens tied{nullptr};  // replaces both if the head is tied
  std::vector<fsdp::Unit<Layer>> layers;
  RmsNorm norm;
  LlamaConfig config;

 private:
  Rotation rotation_for(const at::Tensor& x_BSH) const;
};
TORCH_MODULE(Llama);

// Returns the loss over a batch of equal tokens. For plans: the step needs the memory of a real
// step.
at::Tensor blank_loss(fsdp::Unit<Llama>& model, int64_t batch, int64_t length);

// Returns the options of the model's units.
fsdp::UnitOptions unit_options(std::string_view fqn);

}  // namespace llama
