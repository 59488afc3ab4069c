#include "models/gpt.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "models/preset_table.h"

namespace gpt {
namespace {

struct Preset {
  const char* name;
  GptConfig config;
};

constexpr std::array kPresets = {
    Preset{"tiny", {2, 64, 2, 64, 256}},
    Preset{"mini", {4, 128, 4, 64, 256}},
    Preset{"gpt2", {12, 768, 12, 1024, 50257}},
    Preset{"gpt2-medium", {24, 1024, 16, 1024, 50257}},
    Preset{"gpt2-large", {36, 1280, 20, 1024, 50257}},
    Preset{"gpt2-xl", {48, 1600, 25, 1024, 50257}},
};

// The standard deviation of GPT-2's initial values. All weights have one normal distribution, and
// biases are zero.
constexpr double kInitialDeviation = 0.02;

// Returns the standard deviation for the two projections of a block that add to the residual
// stream. It is smaller, so that the stream does not grow with the number of blocks.
double residual_deviation(const GptConfig& config) {
  return kInitialDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
}

torch::nn::Linear make_linear(int64_t in_features, int64_t out_features,
                              double deviation = kInitialDeviation) {
  torch::nn::Linear linear(in_features, out_features);
  torch::nn::init::normal_(linear->weight, 0.0, deviation);
  torch::nn::init::zeros_(linear->bias);
  return linear;
}

torch::nn::Embedding make_embedding(int64_t rows, int64_t hidden) {
  torch::nn::Embedding embedding(rows, hidden);
  torch::nn::init::normal_(embedding->weight, 0.0, kInitialDeviation);
  return embedding;
}

int64_t mlp_features(const GptConfig& config) {
  return config.mlp > 0 ? config.mlp : 4 * config.hidden;
}

torch::nn::LayerNorm make_norm(int64_t hidden) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}));
}

}  // namespace

std::string preset_names() { return presets::names_of(kPresets); }

GptConfig preset_config(const std::string& name) { return presets::find(kPresets, name).config; }

BlockImpl::BlockImpl(const GptConfig& config)
    : attention_norm(register_module("attention_norm", make_norm(config.hidden))),
      mlp_norm(register_module("mlp_norm", make_norm(config.hidden))),
      query_key_value(
          register_module("query_key_value", make_linear(config.hidden, 3 * config.hidden))),
      attention_out(register_module(
          "attention_out", make_linear(config.hidden, config.hidden, residual_deviation(config)))),
      mlp_up(register_module("mlp_up", make_linear(config.hidden, mlp_features(config)))),
      mlp_down(register_module("mlp_down", make_linear(mlp_features(config), config.hidden,
                                                       residual_deviation(config)))),
      heads(config.heads) {}

at::Tensor BlockImpl::attend(const at::Tensor& x_BSH) {
  const std::vector<at::Tensor> projected_BSH = query_key_value(x_BSH).chunk(3, /*dim=*/2);
  const auto split_heads = [&](const at::Tensor& each_BSH) {
    return each_BSH.unflatten(-1, {heads, -1}).transpose(1, 2);  // B,N,S,D
  };
  const at::Tensor mixed_BNSD = at::scaled_dot_product_attention(
      split_heads(projected_BSH[0]), split_heads(projected_BSH[1]), split_heads(projected_BSH[2]),
      /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return attention_out(mixed_BNSD.transpose(1, 2).flatten(2));
}

at::Tensor BlockImpl::forward(const at::Tensor& x_BSH) {
  const at::Tensor attended_BSH = x_BSH + attend(attention_norm(x_BSH));
  const at::Tensor wide = at::gelu(mlp_up(mlp_norm(attended_BSH)), "tanh");
  return attended_BSH + mlp_down(wide);
}

GptImpl::GptImpl(const GptConfig& config)
    : tokens(register_module("tokens", make_embedding(config.vocabulary, config.hidden))),
      positions(register_module("positions", make_embedding(config.block_size, config.hidden))),
      norm(register_module("norm", make_norm(config.hidden))) {
  torch::nn::ModuleList list;
  for (int64_t i = 0; i < config.layers; ++i) {
    blocks.emplace_back(config);
    list->push_back(blocks.back().ptr());
  }
  register_module("blocks", list);
}

at::Tensor GptImpl::forward(const at::Tensor& ids_BS) {
  const at::Tensor positions_S = at::arange(ids_BS.size(1), ids_BS.options());
  at::Tensor x_BSH = tokens(ids_BS) + positions(positions_S);
  for (fsdp::Unit<Block>& block : blocks) x_BSH = block(x_BSH);
  return at::linear(norm(x_BSH), tokens->weight);  // the head shares the tokens' embedding
}

at::Tensor blank_loss(fsdp::Unit<Gpt>& model, int64_t batch, int64_t length) {
  const at::Tensor ids_BS = at::zeros({batch, length + 1}, at::kLong);
  return at::cross_entropy_loss(model(ids_BS.slice(1, 0, -1)).flatten(0, 1),
                                ids_BS.slice(1, 1).flatten());
}

std::vector<int64_t> generate(fsdp::Unit<Gpt>& model, std::vector<int64_t> ids,
                              const Sampling& sampling) {
  const at::NoGradGuard no_grad;
  // Tokens are drawn on the CPU, so that the random numbers do not depend on the device.
  const at::Generator generator = at::detail::createCPUGenerator(sampling.seed);
  const int64_t block_size = model->positions->options.num_embeddings();
  for (int64_t i = 0; i < sampling.tokens; ++i) {
    const auto block = ids.end() - std::min(block_size, std::ssize(ids));
    const at::Tensor ids_1S = at::tensor(std::vector<int64_t>(block, ids.end())).unsqueeze(0);
    const at::Tensor logits_V = model(ids_1S.to(sampling.device))[0][-1].cpu();
    const at::Tensor odds_V = at::softmax(logits_V / sampling.temperature, 0);
    ids.push_back(at::multinomial(odds_V, 1, /*replacement=*/true, generator).item<int64_t>());
  }
  return ids;
}

}  // namespace gpt
