// The Llama with a unit for each layer. A layer is sharded as soon as it is built.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/support/port.h"

namespace nn = torch::nn;

struct LlamaConfig {
  int64_t vocabulary = 31, layers = 2, heads = 4, key_value_heads = 2, width = 32, inner = 48;
};

struct RmsNormImpl : nn::Module {
  explicit RmsNormImpl(int64_t width) : weight(register_parameter("weight", torch::ones(width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + 1e-5) * weight;
  }
  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

// Rotates pairs of features by angles that grow with the position. The shape of x is [batch, heads,
// positions, features].
at::Tensor rotate(const at::Tensor& x) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor angles =
      at::outer(torch::arange(x.size(2)).to(torch::kFloat),
                at::pow(1e4, torch::arange(half) / -double(half)).to(torch::kFloat));
  const auto pair = x.chunk(2, 3);
  return torch::cat({pair[0] * angles.cos() - pair[1] * angles.sin(),
                     pair[1] * angles.cos() + pair[0] * angles.sin()},
                    3);
}

struct LayerImpl : nn::Module {
  explicit LayerImpl(const LlamaConfig& config)
      : heads(config.heads), key_value_heads(config.key_value_heads) {
    const int64_t size = config.width / heads;
    attention_norm = register_module("attention_norm", RmsNorm(config.width));
    mlp_norm = register_module("mlp_norm", RmsNorm(config.width));
    wq = register_module("wq", linear(config.width, config.width));
    wk = register_module("wk", linear(config.width, key_value_heads * size));
    wv = register_module("wv", linear(config.width, key_value_heads * size));
    wo = register_module("wo", linear(config.width, config.width));
    w1 = register_module("w1", linear(config.width, config.inner));
    w2 = register_module("w2", linear(config.inner, config.width));
    w3 = register_module("w3", linear(config.width, config.inner));
  }
  at::Tensor forward(at::Tensor x) {
    x = x + attend(attention_norm(x));
    const at::Tensor normed = mlp_norm(x);
    return x + w2(at::silu(w1(normed)) * w3(normed));
  }
  at::Tensor attend(const at::Tensor& x) {
    const auto by_heads = [&](const at::Tensor& features, int64_t count) {
      return features.view({x.size(0), x.size(1), count, -1}).transpose(1, 2);
    };
    const int64_t shared = heads / key_value_heads;
    const at::Tensor q = rotate(by_heads(wq(x), heads));
    const at::Tensor k = rotate(by_heads(wk(x), key_value_heads)).repeat_interleave(shared, 1);
    const at::Tensor v = by_heads(wv(x), key_value_heads).repeat_interleave(shared, 1);
    const at::Tensor seen = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    return wo(seen.transpose(1, 2).flatten(2));
  }
  static nn::Linear linear(int64_t in, int64_t out) {
    return nn::Linear(nn::LinearOptions(in, out).bias(false));
  }
  int64_t heads, key_value_heads;
  RmsNorm attention_norm{nullptr}, mlp_norm{nullptr};
  nn::Linear wq{nullptr}, wk{nullptr}, wv{nullptr}, wo{nullptr};
  nn::Linear w1{nullptr}, w2{nullptr}, w3{nullptr};
};
TORCH_MODULE(Layer);

struct LlamaImpl : nn::Module {
  explicit LlamaImpl(const LlamaConfig& config)
      : tokens(
            register_module("tokens", fsdp::Unit<nn::Embedding>(config.vocabulary, config.width))),
        norm(register_module("norm", RmsNorm(config.width))),
        output(register_module("output", LayerImpl::linear(config.width, config.vocabulary))) {
    for (int64_t i = 0; i < config.layers; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), fsdp::Unit<Layer>(config)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids);
    for (auto& layer : layers) x = layer(x);
    return output(norm(x));
  }
  fsdp::Unit<nn::Embedding> tokens;
  RmsNorm norm;
  nn::Linear output;
  std::vector<fsdp::Unit<Layer>> layers;
};
TORCH_MODULE(Llama);

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  fsdp::BuildScope building(mesh, {.seed = 1});
  fsdp::Unit<Llama> model(LlamaConfig{});
  fsdp::Engine engine(model, building);
#ifdef PORTS_TORCH_OPTIM
  torch::optim::AdamW optimizer(engine.parameters(),
                                torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
#else
  fsdp::AdamW optimizer(engine, {.lr = 1e-2, .weight_decay = 0.1});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [ids, next] = ports::counting(part, 31, 12);
      const at::Tensor logits = model(ids);
      const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
}
