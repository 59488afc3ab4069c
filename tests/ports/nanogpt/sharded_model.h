// A GPT in which each block is a unit.
#pragma once

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cmath>

namespace ports::sharded_gpt {

namespace nn = torch::nn;

struct GptConfig {
  int64_t vocabulary = 31, block_size = 16, layers = 2, heads = 2, width = 24;
};

struct CausalSelfAttentionImpl : nn::Module {
  explicit CausalSelfAttentionImpl(const GptConfig& config)
      : heads(config.heads),
        c_attn(register_module("c_attn", nn::Linear(config.width, 3 * config.width))),
        c_proj(register_module("c_proj", nn::Linear(config.width, config.width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    auto qkv = c_attn(x).split(width, 2);
    for (at::Tensor& part : qkv) part = part.view({batch, length, heads, -1}).transpose(1, 2);
    const at::Tensor seen =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    return c_proj(seen.transpose(1, 2).reshape({batch, length, width}));
  }
  int64_t heads;
  nn::Linear c_attn, c_proj;
};
TORCH_MODULE(CausalSelfAttention);

struct BlockImpl : nn::Module {
  explicit BlockImpl(const GptConfig& config)
      : ln_1(register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({config.width})))),
        ln_2(register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({config.width})))),
        attn(register_module("attn", CausalSelfAttention(config))),
        c_fc(register_module("c_fc", nn::Linear(config.width, 4 * config.width))),
        c_proj(register_module("c_proj", nn::Linear(4 * config.width, config.width))) {}
  at::Tensor forward(at::Tensor x) {
    x = x + attn(ln_1(x));
    return x + c_proj(at::gelu(c_fc(ln_2(x))));
  }
  nn::LayerNorm ln_1, ln_2;
  CausalSelfAttention attn;
  nn::Linear c_fc, c_proj;
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  explicit GptImpl(const GptConfig& given)
      : config(given),
        wte(register_module("wte", nn::Embedding(config.vocabulary, config.width))),
        wpe(register_module("wpe", nn::Embedding(config.block_size, config.width))),
        ln_f(register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({config.width})))) {
    for (int64_t i = 0; i < config.layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), fsdp::Unit<Block>(config)));
    for (const at::Tensor& parameter : parameters())
      if (parameter.dim() > 1) nn::init::normal_(parameter, 0.0, 0.02);
  }
  at::Tensor forward(at::Tensor ids) {
    at::Tensor x = wte(ids) + wpe(torch::arange(ids.size(1), ids.options()));
    for (auto& block : blocks) x = block(x);
    return nn::functional::linear(ln_f(x), wte->weight);
  }
  at::Tensor generate(at::Tensor ids, int64_t count, int64_t top_k) {
    torch::NoGradGuard no_grad;
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor seen = ids.slice(1, std::max<int64_t>(0, ids.size(1) - config.block_size));
      at::Tensor logits = forward(seen).select(1, -1);
      const at::Tensor least = std::get<0>(logits.topk(top_k)).slice(1, -1);
      logits = logits.masked_fill(logits < least, -INFINITY);
      ids = torch::cat({ids, logits.softmax(-1).multinomial(1)}, 1);
    }
    return ids;
  }
  GptConfig config;
  nn::Embedding wte, wpe;
  nn::LayerNorm ln_f;
  std::vector<fsdp::Unit<Block>> blocks;
};
TORCH_MODULE(Gpt);

}  // namespace ports::sharded_gpt
