#include "models/bert/bert_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include <string>

namespace bert {
namespace {

bool pre_norm(const Config& config) { return config.model_type == "megatron-bert"; }

torch::nn::Linear make_linear(const Config& config, int64_t in_features, int64_t out_features) {
  torch::nn::Linear linear(in_features, out_features);
  torch::nn::init::normal_(linear->weight, 0.0, config.initializer_range);
  torch::nn::init::zeros_(linear->bias);
  return linear;
}

torch::nn::LayerNorm make_norm(const Config& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

torch::nn::Embedding make_embedding(const Config& config, int64_t rows) {
  torch::nn::Embedding embedding(rows, config.hidden_size);
  torch::nn::init::normal_(embedding->weight, 0.0, config.initializer_range);
  return embedding;
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(const Config& config)
    : query(register_module("query", make_linear(config, config.hidden_size, config.hidden_size))),
      key(register_module("key", make_linear(config, config.hidden_size, config.hidden_size))),
      value(register_module("value", make_linear(config, config.hidden_size, config.hidden_size))),
      heads(config.num_attention_heads),
      dropout(config.attention_probs_dropout_prob) {}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& x_BSH, const at::Tensor& mask_B11S) {
  const auto split_heads = [&](const at::Tensor& projected_BSH) {
    return projected_BSH.unflatten(-1, {heads, -1}).transpose(1, 2);  // B,N,S,D
  };
  const at::Tensor mixed_BNSD = at::scaled_dot_product_attention(
      split_heads(query(x_BSH)), split_heads(key(x_BSH)), split_heads(value(x_BSH)), mask_B11S,
      is_training() ? dropout : 0.0);
  return mixed_BNSD.transpose(1, 2).flatten(2);
}

ProjectionImpl::ProjectionImpl(const Config& config, int64_t in_features)
    : dense(register_module("dense", make_linear(config, in_features, config.hidden_size))),
      dropout(config.hidden_dropout_prob) {
  // Names differ between the two models: "LayerNorm" after, "ln" before.
  if (!pre_norm(config)) norm = register_module("LayerNorm", make_norm(config));
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  const at::Tensor sum = at::dropout(dense(x), dropout, is_training()) + residual;
  return norm ? norm(sum) : sum;
}

AttentionImpl::AttentionImpl(const Config& config)
    : self(register_module("self", SelfAttention(config))),
      output(register_module("output", Projection(config, config.hidden_size))) {
  if (pre_norm(config)) norm = register_module("ln", make_norm(config));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BSH, const at::Tensor& mask_B11S) {
  return output(self(norm ? norm(x_BSH) : x_BSH, mask_B11S), x_BSH);
}

IntermediateImpl::IntermediateImpl(const Config& config)
    : dense(register_module("dense",
                            make_linear(config, config.hidden_size, config.intermediate_size))),
      gelu(config.hidden_act == "gelu" ? "none" : "tanh") {}

at::Tensor IntermediateImpl::forward(const at::Tensor& x) { return at::gelu(dense(x), gelu); }

BertLayerImpl::BertLayerImpl(const Config& config)
    : attention(register_module("attention", Attention(config))),
      intermediate(register_module("intermediate", Intermediate(config))),
      output(register_module("output", Projection(config, config.intermediate_size))) {
  if (pre_norm(config)) norm = register_module("ln", make_norm(config));
}

at::Tensor BertLayerImpl::forward(const at::Tensor& x_BSH, const at::Tensor& mask_B11S) {
  const at::Tensor attended_BSH = attention(x_BSH, mask_B11S);
  return output(intermediate(norm ? norm(attended_BSH) : attended_BSH), attended_BSH);
}

WordEmbeddingsImpl::WordEmbeddingsImpl(const Config& config)
    : torch::nn::EmbeddingImpl(torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size)
                                   .padding_idx(config.pad_token_id)) {
  torch::nn::init::normal_(weight, 0.0, config.initializer_range);
  torch::NoGradGuard no_grad;
  weight[config.pad_token_id].zero_();
}

EmbeddingsImpl::EmbeddingsImpl(const Config& config)
    : word_embeddings(register_module("word_embeddings", fsdp::Unit<WordEmbeddings>(config))),
      position_embeddings(register_module("position_embeddings",
                                          make_embedding(config, config.max_position_embeddings))),
      token_type_embeddings(
          register_module("token_type_embeddings", make_embedding(config, config.type_vocab_size))),
      dropout(config.hidden_dropout_prob) {
  if (!pre_norm(config)) norm = register_module("LayerNorm", make_norm(config));
}

at::Tensor EmbeddingsImpl::forward(const at::Tensor& ids_BS, const at::Tensor& segments_BS) {
  const at::Tensor positions_S = at::arange(ids_BS.size(1), ids_BS.options());
  at::Tensor x_BSH = word_embeddings(ids_BS) + token_type_embeddings(segments_BS) +
                     position_embeddings(positions_S);
  return at::dropout(norm ? norm(x_BSH) : x_BSH, dropout, is_training());
}

PoolerImpl::PoolerImpl(const Config& config)
    : dense(register_module("dense", make_linear(config, config.hidden_size, config.hidden_size))) {
}

at::Tensor PoolerImpl::forward(const at::Tensor& x_BSH) {
  return at::tanh(dense(x_BSH.select(1, 0)));
}

EncoderImpl::EncoderImpl(const Config& config) {
  torch::nn::ModuleList list;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers.emplace_back(config);
    list->push_back(layers.back().ptr());
  }
  register_module("layer", list);
  if (pre_norm(config)) norm = register_module("ln", make_norm(config));
}

at::Tensor EncoderImpl::forward(at::Tensor x_BSH, const at::Tensor& mask_B11S) {
  for (fsdp::Unit<BertLayer>& layer : layers) x_BSH = layer(x_BSH, mask_B11S);
  return norm ? norm(x_BSH) : x_BSH;
}

BertImpl::BertImpl(const Config& config)
    : embeddings(register_module("embeddings", Embeddings(config))),
      encoder(register_module("encoder", Encoder(config))) {
  if (config.answer_types > 0) pooler = register_module("pooler", Pooler(config));
}

at::Tensor BertImpl::forward(const at::Tensor& ids_BS, const at::Tensor& segments_BS,
                             const at::Tensor& attention_mask_BS) {
  // Computed once for all layers; it broadcasts over heads and queries.
  const at::Tensor mask_B11S = attention_mask_BS.to(at::kBool).unsqueeze(1).unsqueeze(1);
  return encoder(embeddings(ids_BS, segments_BS), mask_B11S);
}

QuestionAnsweringImpl::QuestionAnsweringImpl(const Config& config)
    : bert(register_module("bert", Bert(config))),
      qa_outputs(register_module("qa_outputs", make_linear(config, config.hidden_size, 2))) {
  if (config.answer_types == 0) return;
  classifier =
      register_module("classifier", make_linear(config, config.hidden_size, config.answer_types));
}

Logits QuestionAnsweringImpl::forward(const at::Tensor& ids_BS, const at::Tensor& segments_BS,
                                      const at::Tensor& attention_mask_BS) {
  const at::Tensor x_BSH = bert(ids_BS, segments_BS, attention_mask_BS);
  Logits logits{.span_BS2 = qa_outputs(x_BSH), .types_BA = {}};
  if (classifier) logits.types_BA = classifier(bert->pooler(x_BSH));
  return logits;
}

// The clamp and ignore_index = length exclude answers beyond the window, as in Hugging Face's
// model.
at::Tensor span_loss_sum(const at::Tensor& logits_BS2, const at::Tensor& first_B,
                         const at::Tensor& last_B) {
  const int64_t length = logits_BS2.size(1);
  const auto cross_entropy = [&](int64_t which, const at::Tensor& target_B) {
    return at::cross_entropy_loss(logits_BS2.select(2, which), target_B.clamp(0, length), {},
                                  at::Reduction::Sum, length);
  };
  return (cross_entropy(0, first_B) + cross_entropy(1, last_B)) / 2;
}

at::Tensor loss_sum(const Logits& logits, const Labels& labels) {
  const at::Tensor span =
      span_loss_sum(logits.span_BS2.to(at::kFloat), labels.first_B, labels.last_B);
  if (!logits.types_BA.defined()) return span;
  constexpr int64_t kIgnored = -1;
  const at::Tensor types = at::cross_entropy_loss(logits.types_BA.to(at::kFloat), labels.types_B,
                                                  {}, at::Reduction::Sum, kIgnored);
  return (2 * span + types) / 3;
}

at::Tensor blank_loss(fsdp::Unit<QuestionAnswering>& model, int64_t batch, int64_t length) {
  const at::Tensor ids_BS = at::zeros({batch, length}, at::kLong);
  const at::Tensor segments_BS = at::zeros({batch, length}, at::kLong);
  const at::Tensor attention_mask_BS = at::ones({batch, length}, at::kLong);
  Labels labels{.first_B = at::zeros({batch}, at::kLong),
                .last_B = at::zeros({batch}, at::kLong),
                .types_B = {}};
  if (model->classifier) labels.types_B = at::zeros({batch}, at::kLong);
  const Logits logits = model(ids_BS, segments_BS, attention_mask_BS);
  return loss_sum(logits, labels) / static_cast<double>(batch);
}

// The backward of an embedding reads only indices, so its weight need not be gathered again.
fsdp::UnitOptions unit_options(std::string_view fqn) {
  if (fqn.ends_with("word_embeddings")) return {.unshard_in_backward = false};
  return {};
}

}  // namespace bert
