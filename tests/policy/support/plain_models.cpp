#include "policy/support/plain_models.h"

#include "support/torch_ranks.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace fsdp::testing {
namespace {

// ---- a GPT whose head and embedding share one weight ----

constexpr int64_t kVocabulary = 19, kTokens = 6, kWidth = 12;

struct GptLayerImpl : nn::Module {
  explicit GptLayerImpl(int64_t width)
      : before(nn::LayerNormOptions({width})),
        between(nn::LayerNormOptions({width})),
        mix(width, 3 * width),
        out(width, width),
        up(width, 2 * width),
        down(2 * width, width) {
    register_module("before", before);
    register_module("between", between);
    register_module("mix", mix);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) {
    const auto parts = mix(before(x)).chunk(3, -1);
    const at::Tensor seen =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + out(seen);
    return x + down(at::gelu(up(between(x))));
  }
  nn::LayerNorm before, between;
  nn::Linear mix, out, up, down;
};
TORCH_MODULE(GptLayer);

struct GptImpl : nn::Module {
  GptImpl() : tokens(kVocabulary, kWidth), places(kTokens, kWidth) {
    register_module("tokens", tokens);
    register_module("places", places);
    for (int i = 0; i < 3; ++i) layers->push_back(GptLayer(kWidth));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids) + places(torch::arange(ids.size(1), ids.options()));
    for (const auto& layer : *layers) x = layer->as<GptLayer>()->forward(x);
    return F::linear(x, tokens->weight);
  }
  nn::Embedding tokens, places;
  nn::ModuleList layers;
};
TORCH_MODULE(Gpt);

// ---- a Llama: RMS norms, rotary positions, grouped-query attention, gated MLP ----

struct RmsNormImpl : nn::Module {
  explicit RmsNormImpl(int64_t width) {
    weight = register_parameter("weight", torch::ones({width}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * weight;
  }
  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

at::Tensor rotate(const at::Tensor& x) {  // [batch, heads, tokens, size]
  const int64_t half = x.size(-1) / 2;
  const auto options = x.options().requires_grad(false);
  const at::Tensor turn =
      at::outer(at::arange(x.size(2), options), at::pow(10.0, -at::arange(half, options) / half));
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()}, -1);
}

struct LlamaLayerImpl : nn::Module {
  static constexpr int64_t kHeads = 4, kKeyHeads = 2, kSize = 4;
  explicit LlamaLayerImpl(int64_t width)
      : norm(width),
        gated_norm(width),
        q(linear(width, kHeads * kSize)),
        k(linear(width, kKeyHeads * kSize)),
        v(linear(width, kKeyHeads * kSize)),
        o(linear(kHeads * kSize, width)),
        gate(linear(width, 2 * width)),
        up(linear(width, 2 * width)),
        down(linear(2 * width, width)) {
    register_module("norm", norm);
    register_module("gated_norm", gated_norm);
    int number = 0;
    for (nn::Linear* each : {&q, &k, &v, &o, &gate, &up, &down}) {
      register_module("linear" + std::to_string(number++), *each);
    }
  }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor y = norm(x);
    const auto heads = [&](const at::Tensor& z, int64_t count) {
      return z.view({x.size(0), x.size(1), count, kSize}).transpose(1, 2);
    };
    const at::Tensor keys = rotate(heads(k(y), kKeyHeads)).repeat_interleave(2, 1);
    const at::Tensor values = heads(v(y), kKeyHeads).repeat_interleave(2, 1);
    const at::Tensor seen =
        at::scaled_dot_product_attention(rotate(heads(q(y), kHeads)), keys, values, {}, 0.0, true);
    x = x + o(seen.transpose(1, 2).reshape({x.size(0), x.size(1), kHeads * kSize}));
    const at::Tensor z = gated_norm(x);
    return x + down(at::silu(gate(z)) * up(z));
  }
  static nn::Linear linear(int64_t in, int64_t out) {
    return nn::Linear(nn::LinearOptions(in, out).bias(false));
  }
  RmsNorm norm, gated_norm;
  nn::Linear q, k, v, o, gate, up, down;
};
TORCH_MODULE(LlamaLayer);

struct LlamaImpl : nn::Module {
  LlamaImpl() : tokens(kVocabulary, kWidth), norm(kWidth), head(kWidth, kVocabulary) {
    register_module("tokens", tokens);
    for (int i = 0; i < 3; ++i) layers->push_back(LlamaLayer(kWidth));
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids);
    for (const auto& layer : *layers) x = layer->as<LlamaLayer>()->forward(x);
    return head(norm(x));
  }
  nn::Embedding tokens;
  nn::ModuleList layers;
  RmsNorm norm;
  nn::Linear head;
};
TORCH_MODULE(Llama);

// ---- a ResNet ----

struct ResidualImpl : nn::Module {
  ResidualImpl(int64_t in, int64_t out, int64_t stride)
      : one(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        two(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        norm_one(out),
        norm_two(out) {
    register_module("one", one);
    register_module("norm_one", norm_one);
    register_module("two", two);
    register_module("norm_two", norm_two);
    if (in == out && stride == 1) return;
    shortcut = register_module(
        "shortcut",
        nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
                       nn::BatchNorm2d(out)));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = norm_two(two(at::relu(norm_one(one(x)))));
    y += shortcut.is_empty() ? x : shortcut->forward(x);
    return y.relu_();
  }
  nn::Conv2d one, two;
  nn::BatchNorm2d norm_one, norm_two;
  nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Residual);

struct ResNetImpl : nn::Module {
  ResNetImpl() : stem(nn::Conv2dOptions(3, 4, 3).padding(1)), head(8, 5) {
    register_module("stem", stem);
    layers->push_back(Residual(4, 4, 1));
    layers->push_back(Residual(4, 8, 2));
    layers->push_back(Residual(8, 8, 1));
    register_module("layers", layers);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& images) {
    return head(layers->forward(at::relu(stem(images))).mean({2, 3}));
  }
  nn::Conv2d stem;
  nn::Sequential layers;
  nn::Linear head;
};
TORCH_MODULE(ResNet);

// ---- a U-Net: skip connections from the way down to the way up ----

nn::Sequential two_convolutions(int64_t in, int64_t out) {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)), nn::ReLU(),
                        nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1)), nn::ReLU());
}

struct UNetImpl : nn::Module {
  UNetImpl()
      : down{two_convolutions(1, 4), two_convolutions(4, 8)},
        bottom(two_convolutions(8, 8)),
        up{two_convolutions(8 + 8, 4), two_convolutions(4 + 4, 4)},
        head(nn::Conv2dOptions(4, 2, 1)) {
    for (size_t i = 0; i < down.size(); ++i) {
      register_module("down" + std::to_string(i), down[i]);
      register_module("up" + std::to_string(i), up[i]);
    }
    register_module("bottom", bottom);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    Tensors kept;
    for (auto& each : down) {
      kept.push_back(each->forward(x));
      x = at::max_pool2d(kept.back(), 2);
    }
    x = bottom->forward(x);
    for (auto& each : up) {
      const auto size = std::vector<int64_t>{kept.back().size(2), kept.back().size(3)};
      x = at::upsample_nearest2d(x, size);
      x = each->forward(at::cat({kept.back(), x}, 1));
      kept.pop_back();
    }
    return head(x);
  }
  std::vector<nn::Sequential> down;
  nn::Sequential bottom;
  std::vector<nn::Sequential> up;
  nn::Conv2d head;
};
TORCH_MODULE(UNet);

// ---- an LSTM over characters ----

struct LetterLstmImpl : nn::Module {
  LetterLstmImpl()
      : tokens(kVocabulary, 8),
        layers(nn::LSTMOptions(8, 10).num_layers(2).batch_first(true)),
        head(10, kVocabulary) {
    register_module("tokens", tokens);
    register_module("layers", layers);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) { return head(std::get<0>(layers(tokens(ids)))); }
  nn::Embedding tokens;
  nn::LSTM layers;
  nn::Linear head;
};
TORCH_MODULE(LetterLstm);

// ---- the data for training ----

at::Tensor ids_of(int step, int rank) {
  return values({2, kTokens}, 900 + 10 * step + rank).mul(100).abs().to(at::kLong) % kVocabulary;
}

template <class M>
PlainModel of_tokens(std::string name, UnitPolicy units, int expected) {
  return {.name = std::move(name),
          .make = [] { return std::make_shared<M>(); },
          .inputs = [](int step, int rank) { return Tensors{ids_of(step, rank)}; },
          .loss =
              [](nn::Module& model, const Tensors& inputs) {
                const at::Tensor logits = dynamic_cast<M&>(model).forward(inputs[0]);
                return F::cross_entropy(logits.flatten(0, 1).to(at::kFloat),
                                        inputs[0].flatten().roll(1));
              },
          .units = std::move(units),
          .expected_units = expected};
}

template <class M>
PlainModel of_values(
    std::string name, std::vector<int64_t> sizes, UnitPolicy units, int expected,
    std::function<std::shared_ptr<nn::Module>()> make = [] { return std::make_shared<M>(); }) {
  return {
      .name = std::move(name),
      .make = std::move(make),
      .inputs = [sizes](int step, int rank) { return Tensors{values(sizes, 50 * step + rank)}; },
      .loss =
          [](nn::Module& model, const Tensors& inputs) {
            return dynamic_cast<M&>(model).forward(inputs[0]).to(at::kFloat).square().mean();
          },
      .units = std::move(units),
      .expected_units = expected};
}

PlainModel transformer() {
  return {.name = "nn::Transformer",
          .make =
              [] {
                return nn::Transformer(
                           nn::TransformerOptions(8, 2, 2, 2).dim_feedforward(16).dropout(0))
                    .ptr();
              },
          .inputs =
              [](int step, int rank) {
                return Tensors{values({5, 2, 8}, 50 * step + rank), values({4, 2, 8}, 7 + rank)};
              },
          .loss =
              [](nn::Module& model, const Tensors& inputs) {
                return dynamic_cast<nn::TransformerImpl&>(model)
                    .forward(inputs[0], inputs[1])
                    .to(at::kFloat)
                    .square()
                    .mean();
              },
          .units = by_type<nn::TransformerEncoderLayer, nn::TransformerDecoderLayer>(),
          .expected_units = 5};
}

}  // namespace

std::vector<PlainModel> plain_models() {
  const auto sequential = [] {
    nn::Sequential layers;
    for (int i = 0; i < 4; ++i) {
      layers->push_back(nn::Linear(6, 6));
      layers->push_back(nn::Tanh());
    }
    return std::shared_ptr<nn::Module>(layers.ptr());
  };
  return {
      transformer(),
      of_tokens<LetterLstmImpl>("LSTM", by_type<nn::LSTM>(), 2),
      of_values<nn::SequentialImpl>("Sequential, 3 a unit", {3, 6}, each_child_of("", 3), 4,
                                    sequential),
      of_values<ResNetImpl>("ResNet, 2 a unit", {2, 3, 6, 6}, each_child_of("layers", 2), 3),
      of_tokens<GptImpl>("GPT, 2 a unit", each_child_of("layers", 2), 3),
      of_values<nn::SequentialImpl>("Sequential", {3, 6}, by_type<nn::Linear>(), 5, sequential),
      of_values<ResNetImpl>("ResNet", {2, 3, 6, 6}, each_child_of("layers"), 4),
      of_tokens<GptImpl>("GPT", by_type<GptLayer>(), 4),
      of_tokens<LlamaImpl>("Llama", by_type<LlamaLayerImpl>(), 4),
      of_values<UNetImpl>(
          "U-Net", {2, 1, 8, 8},
          by_type<nn::Sequential>() | by_name([](auto fqn) { return fqn == "head"; }), 7),
  };
}

PlainModel plain_model(const std::string& name) {
  for (PlainModel& model : plain_models()) {
    if (model.name == name) return std::move(model);
  }
  throw std::invalid_argument("no plain model is called " + name);
}

}  // namespace fsdp::testing
