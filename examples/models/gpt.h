// Defines a GPT, which predicts the next token, as ordinary LibTorch modules with some units.
//
// It has the structure of GPT-2: embeddings of tokens and positions, pre-LN blocks, causal
// attention, a last norm, and a head that shares the embedding of the tokens. The units are each
// block and the root, which holds all other parameters. So the shared embedding is used in only one
// unit. Suffixes of names give shapes: B sequences, S tokens, H hidden, N heads, D head size, V
// vocabulary.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/unit.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

// The sizes of a GPT. Requires: all are positive; `heads` divides `hidden`.
struct GptConfig {
  int64_t layers = 12;
  int64_t hidden = 768;
  int64_t heads = 12;
  int64_t block_size = 1024;  // the longest sequence
  int64_t vocabulary = 50257;
  int64_t mlp = 0;  // features inside the MLP of a block; 0: 4 × hidden
};

// Returns "tiny, mini, gpt2, …, gpt2-xl".
std::string preset_names();
// Returns the sizes of a preset. tiny and mini train on a laptop: their tokens are bytes, and their
// block size is 64. The other presets are GPT-2's four sizes.
// Errors: InvalidArgument kUsage, which names the choices.
GptConfig preset_config(const std::string& name);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x_BSH);

  torch::nn::LayerNorm attention_norm, mlp_norm;
  torch::nn::Linear query_key_value, attention_out;
  torch::nn::Linear mlp_up, mlp_down;
  int64_t heads;

 private:
  at::Tensor attend(const at::Tensor& x_BSH);
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptConfig& config);
  // Returns the logits [B,S,V] of each token's successor. ids are int64, and S is at most
  // block_size.
  at::Tensor forward(const at::Tensor& ids_BS);

  torch::nn::Embedding tokens, positions;
  std::vector<fsdp::Unit<Block>> blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

// Returns the loss over a batch of equal tokens. For plans: the step needs the memory of a real
// step.
at::Tensor blank_loss(fsdp::Unit<Gpt>& model, int64_t batch, int64_t length);

// Options of generate.
struct Sampling {
  int64_t tokens = 1;        // number of tokens to draw
  double temperature = 1.0;  // above zero; logits are divided by it
  uint64_t seed = 0;
  at::Device device = at::kCPU;  // of the model
};

// Returns `ids` (at least one) and the tokens that follow. Each is drawn from the model's
// prediction for the last block_size tokens before it. Runs without gradients. Collective if
// `model` is sharded; with the same arguments all ranks draw the same tokens.
std::vector<int64_t> generate(fsdp::Unit<Gpt>& model, std::vector<int64_t> ids,
                              const Sampling& sampling);

}  // namespace gpt
