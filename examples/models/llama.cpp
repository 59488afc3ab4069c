#include "models/llama.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>

#include "models/preset_table.h"

namespace llama {
namespace {

struct Preset {
  const char* name;
  LlamaConfig config;
};

constexpr LlamaConfig llama3(LlamaConfig config) {
  config.vocabulary = 128256;
  config.longest = 8192;
  config.rope_theta = 500000;
  return config;
}

constexpr std::array kPresets = {
    Preset{"tiny", {2, 64, 4, 2, 176, 256, 64}},
    Preset{"7b", {32, 4096, 32, 32, 11008}},
    Preset{"13b", {40, 5120, 40, 40, 13824}},
    Preset{"70b", {80, 8192, 64, 8, 28672}},
    Preset{"3-8b", llama3({32, 4096, 32, 8, 14336})},
    Preset{"3-70b", llama3({80, 8192, 64, 8, 28672})},
    Preset{"3-405b", llama3({126, 16384, 128, 8, 53248})},
};

constexpr double kInitialDeviation = 0.02;

torch::nn::Linear make_projection(int64_t in_features, int64_t out_features, bool bias = false) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in_features, out_features).bias(bias));
  torch::nn::init::normal_(linear->weight, 0.0, kInitialDeviation);
  if (bias) torch::nn::init::zeros_(linear->bias);
  return linear;
}

// Returns the projection of the hidden states to `heads` heads.
torch::nn::Linear make_heads(const LlamaConfig& config, int64_t heads) {
  return make_projection(config.hidden, heads * config.size_of_head(), config.has_biases);
}

// Rotates pairs of features. The first feature of a pair is in the first half of a head's features,
// and the second feature is in the second half.
at::Tensor rotated(const at::Tensor& x_BNSD, const Rotation& rotation) {
  const std::vector<at::Tensor> halves = x_BNSD.chunk(2, /*dim=*/-1);
  const at::Tensor turned = at::cat({-halves[1], halves[0]}, -1);
  return x_BNSD * rotation.cos_SD + turned * rotation.sin_SD;
}

}  // namespace

std::string preset_names() { return presets::names_of(kPresets); }

LlamaConfig preset_config(const std::string& name) { return presets::find(kPresets, name).config; }

RmsNormImpl::RmsNormImpl(int64_t hidden, double epsilon)
    : weight(register_parameter("weight", at::ones({hidden}))), epsilon(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + epsilon);
  return weight * (wide * scale).to(x.scalar_type());
}

TokensImpl::TokensImpl(const LlamaConfig& config)
    : torch::nn::EmbeddingImpl(config.vocabulary, config.hidden) {
  torch::nn::init::normal_(weight, 0.0, kInitialDeviation);
}

HeadImpl::HeadImpl(const LlamaConfig& config)
    : torch::nn::LinearImpl(
          torch::nn::LinearOptions(config.hidden, config.vocabulary).bias(false)) {
  torch::nn::init::normal_(weight, 0.0, kInitialDeviation);
}

LayerImpl::LayerImpl(const LlamaConfig& config)
    : attention_norm(
          register_module("attention_norm", RmsNorm(config.hidden, config.norm_epsilon))),
      mlp_norm(register_module("mlp_norm", RmsNorm(config.hidden, config.norm_epsilon))),
      query(register_module("query", make_heads(config, config.heads))),
      key(register_module("key", make_heads(config, config.key_value_heads))),
      value(register_module("value", make_heads(config, config.key_value_heads))),
      attention_out(register_module(
          "attention_out", make_projection(config.heads * config.size_of_head(), config.hidden))),
      gate(register_module("gate", make_projection(config.hidden, config.intermediate))),
      up(register_module("up", make_projection(config.hidden, config.intermediate))),
      down(register_module("down", make_projection(config.intermediate, config.hidden))),
      heads(config.heads),
      key_value_heads(config.key_value_heads) {
  if (!config.normalizes_heads) return;
  query_norm = register_module("query_norm", RmsNorm(config.size_of_head(), config.norm_epsilon));
  key_norm = register_module("key_norm", RmsNorm(config.size_of_head(), config.norm_epsilon));
}

at::Tensor LayerImpl::attend(const at::Tensor& x_BSH, const Rotation& rotation) {
  const auto split = [](const at::Tensor& each_BSH, int64_t into) {
    return each_BSH.unflatten(-1, {into, -1}).transpose(1, 2);  // B,N,S,D or B,G,S,D
  };
  // Each head of keys and values is repeated, because heads / key_value_heads heads of queries use
  // it.
  const auto shared = [&](const at::Tensor& each_BGSD) {
    if (heads == key_value_heads) return each_BGSD;
    const std::vector<int64_t> sizes = each_BGSD.sizes().vec();
    return each_BGSD.unsqueeze(2)
        .expand({sizes[0], sizes[1], heads / key_value_heads, sizes[2], sizes[3]})
        .flatten(1, 2);
  };
  at::Tensor query_BNSD = split(query(x_BSH), heads), key_BGSD = split(key(x_BSH), key_value_heads);
  if (query_norm) {
    query_BNSD = query_norm(query_BNSD);
    key_BGSD = key_norm(key_BGSD);
  }
  const at::Tensor mixed_BNSD = at::scaled_dot_product_attention(
      rotated(query_BNSD, rotation), shared(rotated(key_BGSD, rotation)),
      shared(split(value(x_BSH), key_value_heads)), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      /*is_causal=*/true);
  return attention_out(mixed_BNSD.transpose(1, 2).flatten(2));
}

at::Tensor LayerImpl::forward(const at::Tensor& x_BSH, const Rotation& rotation) {
  const at::Tensor attended_BSH = x_BSH + attend(attention_norm(x_BSH), rotation);
  const at::Tensor normed_BSH = mlp_norm(attended_BSH);
  return attended_BSH + down(at::silu(gate(normed_BSH)) * up(normed_BSH));
}

LlamaImpl::LlamaImpl(const LlamaConfig& of)
    : norm(register_module("norm", RmsNorm(of.hidden, of.norm_epsilon))), config(of) {
  if (config.ties_head) {
    tied = register_module("tokens", Tokens(config));
  } else {
    tokens.emplace(config);
    register_module("tokens", tokens->ptr());
  }
  torch::nn::ModuleList list;
  for (int64_t i = 0; i < config.layers; ++i) {
    layers.emplace_back(config);
    list->push_back(layers.back().ptr());
  }
  register_module("layers", list);
  if (config.ties_head) return;
  head.emplace(config);
  register_module("head", head->ptr());
}

Rotation LlamaImpl::rotation_for(const at::Tensor& x_BSH) const {
  // Angles grow with the position, so they are computed in fp32 and cast at the end.
  const auto numbers = x_BSH.options().dtype(at::kFloat).requires_grad(false);
  const int64_t features = config.size_of_head();
  const at::Tensor places = at::arange(0, features, 2, numbers) / static_cast<double>(features);
  const at::Tensor angles =
      at::outer(at::arange(x_BSH.size(1), numbers), at::pow(config.rope_theta, -places));
  const at::Tensor both = at::cat({angles, angles}, -1);  // S,D
  return {at::cos(both).to(x_BSH.scalar_type()), at::sin(both).to(x_BSH.scalar_type())};
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids_BS) {
  at::Tensor x_BSH = tokens ? (*tokens)(ids_BS) : tied(ids_BS);
  const Rotation rotation = rotation_for(x_BSH);
  for (fsdp::Unit<Layer>& layer : layers) x_BSH = layer(x_BSH, rotation);
  x_BSH = norm(x_BSH);
  return head ? (*head)(x_BSH) : at::linear(x_BSH, tied->weight);
}

at::Tensor blank_loss(fsdp::Unit<Llama>& model, int64_t batch, int64_t length) {
  const at::Tensor ids_BS = at::zeros({batch, length}, at::kLong);
  return at::cross_entropy_loss(model(ids_BS).flatten(0, 1).to(at::kFloat), ids_BS.flatten());
}

// The backward of an embedding reads only indices, so its weight need not be gathered again.
fsdp::UnitOptions unit_options(std::string_view fqn) {
  if (fqn == "tokens") return {.unshard_in_backward = false};
  return {};
}

}  // namespace llama
