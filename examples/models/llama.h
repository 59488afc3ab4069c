// Llama: predicts the next token, as ordinary LibTorch modules with units where they pay.
//
// The shape of Llama 2 and 3: root-mean-square norms first, rotary positions, attention whose keys
// and values have fewer heads (grouped), a gated MLP (SwiGLU), no biases. Units: the tokens'
// embedding (its backward reads no weight), each layer, the head, and the root with the last norm.
// Shapes in names: B sequences, S tokens, H hidden, N heads, G heads of keys and values, D head
// size, V vocabulary.
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

// Requires: all positive; `heads` divides `hidden`, `key_value_heads` divides `heads`; heads are of
// an even size.
struct LlamaConfig {
  int64_t layers = 32;
  int64_t hidden = 4096;
  int64_t heads = 32;
  int64_t key_value_heads = 32;
  int64_t intermediate = 11008;
  int64_t vocabulary = 32000;
  int64_t longest = 4096;  // sequence
  double rope_theta = 10000;
  double norm_epsilon = 1e-5;
  bool ties_head = false;  // the head is the tokens' embedding, which is the root's then
};

// "tiny, 7b, 13b, 70b, 3-8b, 3-70b, 3-405b"
std::string preset_names();
// Llama 2's sizes, and Llama 3's as "3-…"; tiny is of no use but to see it work.
// Errors: InvalidArgument kUsage naming the choices.
LlamaConfig preset_config(const std::string& name);

// Their initial values are drawn in their own constructors, since units are sharded right after.
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
  at::Tensor forward(const at::Tensor& x);  // in float32, as x comes back

  at::Tensor weight;
  double epsilon;
};
TORCH_MODULE(RmsNorm);

// What turns a head's features by its token's place, each [S,D].
struct Rotation {
  at::Tensor cos_SD, sin_SD;
};

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x_BSH, const Rotation& rotation);

  RmsNorm attention_norm, mlp_norm;
  torch::nn::Linear query, key, value, attention_out;
  torch::nn::Linear gate, up, down;
  int64_t heads, key_value_heads;

 private:
  at::Tensor attend(const at::Tensor& x_BSH, const Rotation& rotation);
};
TORCH_MODULE(Layer);

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const LlamaConfig& config);
  // int64 ids, S at most `longest` -> logits [B,S,V] of each token's successor.
  at::Tensor forward(const at::Tensor& ids_BS);

  std::optional<fsdp::Unit<Tokens>> tokens;
  std::optional<fsdp::Unit<Head>> head;
  Tokens tied{nullptr};  // instead of both, where the head is tied
  std::vector<fsdp::Unit<Layer>> layers;
  RmsNorm norm;
  LlamaConfig config;

 private:
  Rotation rotation_for(const at::Tensor& x_BSH) const;
};
TORCH_MODULE(Llama);

// Mean cross-entropy over a batch of one token alone: what a step takes, and nothing to learn.
at::Tensor blank_loss(fsdp::Unit<Llama>& model, int64_t batch, int64_t length);

// What the model's units say about themselves.
fsdp::UnitOptions unit_options(std::string_view fqn);

}  // namespace llama
