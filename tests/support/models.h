// Small models made of units.
#pragma once

#include <fsdp/unit.h>

#include <vector>

#include "support/torch_doctest.h"

namespace fsdp::testing {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear up = nullptr, down = nullptr;
};
TORCH_MODULE(Block);

// A root with its own LayerNorm. Its embedding, blocks and head are units.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(int64_t width = 8, int64_t layers = 3, int64_t vocabulary = 17)
      : embedding(vocabulary, width),
        norm(torch::nn::LayerNormOptions({width})),
        head(width, vocabulary) {
    register_module("embedding", embedding);
    for (int64_t i = 0; i < layers; ++i) {
      blocks.emplace_back(width);
      register_module("block" + std::to_string(i), blocks.back());
    }
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embedding(tokens);
    for (auto& block : blocks) x = block(x);
    return head(norm(x));
  }
  Unit<torch::nn::Embedding> embedding;
  std::vector<Unit<Block>> blocks;
  torch::nn::LayerNorm norm;
  Unit<torch::nn::Linear> head;
};
TORCH_MODULE(Chain);

// Token sequences and labels of one rank in one step.
struct Batch {
  at::Tensor tokens, labels;
};
inline Batch batch_of(int step, int rank, int64_t vocabulary = 17) {
  const at::Generator generator = at::detail::createCPUGenerator(1000 * step + rank);
  return {torch::randint(vocabulary, {2, 5}, generator, torch::kLong),
          torch::randint(vocabulary, {2, 5}, generator, torch::kLong)};
}

template <class Model>
at::Tensor loss_of(Model& model, const Batch& batch) {
  const at::Tensor logits = model(batch.tokens);
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1).to(torch::kFloat),
                                              batch.labels.flatten());
}

}  // namespace fsdp::testing
