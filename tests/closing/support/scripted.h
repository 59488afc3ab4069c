// Scripted is a root module with two units. The test passes its forward as a function.
#pragma once

#include <functional>

#include "support/torch_ranks.h"

namespace fsdp::testing {

inline constexpr int64_t kScriptedWidth = 4;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : up(kScriptedWidth, kScriptedWidth), down(kScriptedWidth, kScriptedWidth) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (throws) throw std::runtime_error("the layer has had enough");
    const at::Tensor hidden = up(x).tanh();
    return x + (uses_down ? down(hidden) : hidden);
  }
  torch::nn::Linear up, down;
  bool throws = false, uses_down = true;
};
TORCH_MODULE(Layer);

struct ScriptedImpl : torch::nn::Module {
  using Script = std::function<at::Tensor(ScriptedImpl&, const at::Tensor&)>;
  static at::Tensor chain(ScriptedImpl& self, const at::Tensor& x) {
    return self.b(self.a(self.head(x)));
  }
  explicit ScriptedImpl(Script forward_script = chain)
      : head(kScriptedWidth, kScriptedWidth), script(std::move(forward_script)) {
    register_module("head", head);
    register_module("a", a);
    register_module("b", b);
  }
  at::Tensor forward(const at::Tensor& x) { return script(*this, x); }
  torch::nn::Linear head;
  Unit<Layer> a, b;
  Script script;
};
TORCH_MODULE(Scripted);

inline Unit<Scripted> make_scripted(uint64_t seed = 5,
                                    ScriptedImpl::Script s = ScriptedImpl::chain) {
  return build_seeded(seed, [&] { return Unit<Scripted>(std::move(s)); });
}
inline at::Tensor scripted_input(int rank) { return values({2, kScriptedWidth}, 40 + rank); }

inline void check_contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

// Checks that the engine's gradients on this rank equal the plain model's `.grad`.
inline void check_gradients(Engine& engine, const torch::nn::Module& plain) {
  const auto expected = plain.named_parameters();
  for (const ShardedParameter& parameter : engine.sharded_parameters()) {
    CAPTURE(parameter.fqn);
    if (parameter.local.numel() == 0) continue;
    REQUIRE(parameter.local.grad().defined());
    const at::Tensor whole = expected[parameter.fqn].grad().flatten();
    CHECK(bit_equal(whole.narrow(0, parameter.begin, parameter.local.numel()),
                    parameter.local.grad()));
  }
}

// Returns a plain copy of the model whose `.grad` is the mean of sum()'s gradients over `world`
// ranks.
inline Unit<Scripted> plain_scripted(int world, uint64_t seed = 5,
                                     ScriptedImpl::Script s = ScriptedImpl::chain) {
  Unit<Scripted> plain = make_scripted(seed, std::move(s));
  mean_gradients(*plain, world, [&](int rank) { plain(scripted_input(rank)).sum().backward(); });
  return plain;
}

}  // namespace fsdp::testing
