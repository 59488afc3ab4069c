// Tests the arguments and results of recomputed functions and units.
#include <fsdp/recompute.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the gradients of x and of all parameters.
std::vector<at::Tensor> gradients_from(const torch::nn::Module& module, const at::Tensor& x) {
  std::vector<at::Tensor> gradients{x.grad().clone()};
  for (const at::Tensor& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

// A module whose first operator changes its argument in place.
struct InplaceFirstImpl : torch::nn::Module {
  InplaceFirstImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(at::Tensor x) { return linear(x.relu_()); }
  torch::nn::Linear linear;
};
TORCH_MODULE(InplaceFirst);

struct InplacesImpl : torch::nn::Module {
  InplacesImpl() { register_module("second", second); }
  at::Tensor forward(const at::Tensor& x) { return second(x * 2); }
  Unit<InplaceFirst> second;
};
TORCH_MODULE(Inplaces);

// A module that passes undefined tensors to a recomputed function. The function returns undefined
// tensors too.
struct AttentionsImpl : torch::nn::Module {
  AttentionsImpl() : first(torch::nn::MultiheadAttentionOptions(8, 2)) {
    register_module("first", first);
    register_module("second", second);
  }
  struct InnerImpl : torch::nn::Module {
    InnerImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
    std::map<std::string, std::optional<at::Tensor>> forward(std::vector<at::Tensor> in) {
      CHECK_FALSE(in[0].defined());
      const at::Tensor h = torch::tanh(linear(in[1]));
      return {{"a", at::Tensor()}, {"b", h}, {"c", std::nullopt}, {"d", in[2]}, {"e", h}};
    }
    torch::nn::Linear linear;
  };
  at::Tensor forward(const at::Tensor& x) {
    const auto [h, weights] = first(x, x, x, at::Tensor(), /*need_weights=*/false, at::Tensor());
    CHECK_FALSE(weights.defined());
    auto out = second(std::vector<at::Tensor>{at::Tensor(), h, at::Tensor()});
    CHECK_FALSE(out["a"]->defined());
    CHECK_FALSE(out["c"].has_value());
    CHECK_FALSE(out["d"]->defined());
    return *out["b"] + *out["e"];
  }
  Unit<torch::nn::MultiheadAttention> first;
  Unit<InnerImpl> second;
};
TORCH_MODULE(Attentions);

}  // namespace

TEST_CASE("a function that changes an input in place is refused in forward, also inside another") {
  const auto changes = [](const std::vector<at::Tensor>& h) { return h[0] + h[1].relu_(); };
  const auto expect = [&](const auto& fn) {
    const std::vector<at::Tensor> in{values({4}, 1).requires_grad_(), values({2, 4}, 2) * 1};
    CHECK_THROWS_WITH_AS(recompute(fn, in),
                         doctest::Contains("a recomputed forward changes its input in place: "
                                           "tensor 1, of shape [2, 4] (fsdp::recompute)"),
                         InvalidArgument);
  };
  expect(changes);
  expect([&](const std::vector<at::Tensor>& h) { return recompute(changes, h); });
  const torch::NoGradGuard no_grad;
  recompute(changes, std::vector<at::Tensor>{values({4}, 1), values({2, 4}, 2)});
}

TEST_CASE("what a function returns of its own state stays as it is") {
  torch::nn::Linear linear(4, 4);
  const at::Tensor table = values({4}, 3);
  const auto fn = [&](const at::Tensor& h) {
    return std::vector<at::Tensor>{linear->bias, table, h, h, linear(h)};
  };
  const auto run = [&](bool recomputed) {
    const at::Tensor x = values({2, 4}, 1).requires_grad_();
    const auto out = recomputed ? recompute(fn, x) : fn(x);
    (out[0] * out[1] * out[2] + out[3] * out[4]).sum().backward();
    CHECK(linear->bias.is_leaf());
    CHECK_FALSE(table.requires_grad());
    return gradients_from(*linear, x);
  };
  const auto again = run(true), once = run(false);
  for (size_t i = 0; i < once.size(); ++i) CHECK(bit_equal(again[i], once[i]));
}

TEST_CASE("a function that returns other tensors in backward is refused") {
  int calls = 0;
  const auto fickle = [&](const at::Tensor& h) {
    return std::vector<at::Tensor>(static_cast<size_t>(++calls), h * 2);
  };
  CHECK_THROWS_WITH_AS(recompute(fickle, values({2}, 1).requires_grad_())[0].sum().backward(),
                       doctest::Contains("the recomputed function returned 2 tensors of shapes [2] "
                                         "[2], expected 1 of shapes [2] (fsdp::recompute)"),
                       StateError);
}

TEST_CASE("a unit that changes its input in place is refused in forward, by name") {
  run_torch_ranks(1, [&](Mesh mesh) {
    Unit<Inplaces> model;
    Engine engine(model, mesh, {.recompute = 1});
    for (const bool has_gradient : {false, true}) {
      const at::Tensor x = values({2, 4}, 1).requires_grad_(has_gradient);
      CHECK_THROWS_WITH_AS(model(x), doctest::Contains("tensor 0, of shape [2, 4] (unit 'second')"),
                           InvalidArgument);
    }
  });
}

TEST_CASE("recomputed units are given undefined tensors and return them") {
  const Twin twin{.make = [] { return Unit<Attentions>().ptr(); },
                  .loss =
                      [](torch::nn::Module& model, int step, int rank) {
                        return dynamic_cast<UnitImpl<AttentionsImpl>&>(model)
                            .call(values({3, 2, 8}, 100 * step + rank))
                            .square()
                            .mean();
                      }};
  for (const int world : {1, 2}) {
    const Trained plain = train_plain(twin, world);
    for (const int every : {0, 1}) {
      CAPTURE(every);
      check_same_bits(train_sharded(twin, world, {.recompute = every, .debug = true}), plain);
    }
  }
}
