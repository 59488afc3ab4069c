// Defines BERT for span question answering, as ordinary LibTorch modules with some units. With
// Config::answer_types it is the joint model of Natural Questions (Alberti et al. 2019), which also
// classifies the answer.
//
// There are two variants: post-LN (model_type "bert") and pre-LN ("megatron-bert"). Parameters have
// the names of Hugging Face's model files. The units are the word embeddings (their backward reads
// no weight), each layer, and the root. The root holds all other parameters: the small embeddings,
// the last norm and the heads. Suffixes of names give shapes: B windows, S tokens, H hidden, N
// heads, D head size, A answer types.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/options.h>
#include <fsdp/unit.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string_view>
#include <vector>

#include "models/bert/config.h"

namespace bert {

struct SelfAttentionImpl : torch::nn::Module {
  explicit SelfAttentionImpl(const Config& config);
  // x_BSH, mask_B11S (false: padding) -> B,S,H
  at::Tensor forward(const at::Tensor& x_BSH, const at::Tensor& mask_B11S);

  torch::nn::Linear query, key, value;
  int64_t heads;
  double dropout;
};
TORCH_MODULE(SelfAttention);

// A projection and, in post-LN models, the norm after it. A layer calls these modules "output".
struct ProjectionImpl : torch::nn::Module {
  ProjectionImpl(const Config& config, int64_t in_features);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

  torch::nn::Linear dense;
  torch::nn::LayerNorm norm{nullptr};
  double dropout;
};
TORCH_MODULE(Projection);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x_BSH, const at::Tensor& mask_B11S);

  torch::nn::LayerNorm norm{nullptr};  // pre-LN only
  SelfAttention self;
  Projection output;
};
TORCH_MODULE(Attention);

struct IntermediateImpl : torch::nn::Module {
  explicit IntermediateImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear dense;
  std::string_view gelu;  // "none" (exact) or "tanh", as at::gelu names them
};
TORCH_MODULE(Intermediate);

struct BertLayerImpl : torch::nn::Module {
  explicit BertLayerImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x_BSH, const at::Tensor& mask_B11S);

  torch::nn::LayerNorm norm{nullptr};  // pre-LN only
  Attention attention;
  Intermediate intermediate;
  Projection output;
};
TORCH_MODULE(BertLayer);

// A torch::nn::Embedding with BERT's initial values. Its constructor draws them, because a unit is
// sharded right after construction.
struct WordEmbeddingsImpl : torch::nn::EmbeddingImpl {
  explicit WordEmbeddingsImpl(const Config& config);
};
TORCH_MODULE(WordEmbeddings);

struct EmbeddingsImpl : torch::nn::Module {
  explicit EmbeddingsImpl(const Config& config);
  at::Tensor forward(const at::Tensor& ids_BS, const at::Tensor& segments_BS);

  fsdp::Unit<WordEmbeddings> word_embeddings;
  torch::nn::Embedding position_embeddings, token_type_embeddings;
  torch::nn::LayerNorm norm{nullptr};  // post-LN only
  double dropout;
};
TORCH_MODULE(Embeddings);

struct EncoderImpl : torch::nn::Module {
  explicit EncoderImpl(const Config& config);
  at::Tensor forward(at::Tensor x_BSH, const at::Tensor& mask_B11S);

  std::vector<fsdp::Unit<BertLayer>> layers;
  torch::nn::LayerNorm norm{nullptr};  // pre-LN only
};
TORCH_MODULE(Encoder);

// Maps the first token of a window to a vector that represents the window.
struct PoolerImpl : torch::nn::Module {
  explicit PoolerImpl(const Config& config);
  at::Tensor forward(const at::Tensor& x_BSH);  // B,H

  torch::nn::Linear dense;
};
TORCH_MODULE(Pooler);

struct BertImpl : torch::nn::Module {
  explicit BertImpl(const Config& config);
  at::Tensor forward(const at::Tensor& ids_BS, const at::Tensor& segments_BS,
                     const at::Tensor& attention_mask_BS);

  Embeddings embeddings;
  Encoder encoder;
  Pooler pooler{nullptr};  // only with answer types
};
TORCH_MODULE(Bert);

// The results of a forward.
struct Logits {
  at::Tensor span_BS2;  // of the answer's first and last token
  at::Tensor types_BA;  // of the answer's type; undefined without answer types
};

struct QuestionAnsweringImpl : torch::nn::Module {
  explicit QuestionAnsweringImpl(const Config& config);
  // ids and segments are int64. attention_mask is 1 for tokens and 0 for padding.
  Logits forward(const at::Tensor& ids_BS, const at::Tensor& segments_BS,
                 const at::Tensor& attention_mask_BS);

  Bert bert;
  torch::nn::Linear qa_outputs;
  torch::nn::Linear classifier{nullptr};  // only with answer types
};
TORCH_MODULE(QuestionAnswering);

// Returns the sum over windows of (cross-entropy of first + of last) / 2. Positions are clamped to
// the length S and ignored there. Divide the sum by the number of windows to get Hugging Face's
// loss.
at::Tensor span_loss_sum(const at::Tensor& logits_BS2, const at::Tensor& first_B,
                         const at::Tensor& last_B);

// The answers of a batch. If a window does not hold the answer, the positions are 0.
struct Labels {
  at::Tensor first_B, last_B;  // positions, ignored at the length S
  at::Tensor types_B;          // read only if the model has answer types; -1: ignored
};

// Returns the sum over windows of the mean of the cross-entropies of first, last and, with answer
// types, type. Logits are cast to float32.
at::Tensor loss_sum(const Logits& logits, const Labels& labels);

// Returns the loss over `batch` windows of `length` equal tokens. For plans: the step needs the
// memory of a real step.
at::Tensor blank_loss(fsdp::Unit<QuestionAnswering>& model, int64_t batch, int64_t length);

// Returns the options of the model's units.
fsdp::UnitOptions unit_options(std::string_view fqn);

}  // namespace bert
