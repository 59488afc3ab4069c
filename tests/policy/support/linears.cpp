#include "policy/support/linears.h"

namespace fsdp::testing {
namespace {

// A custom Function whose gradient does not need the weight.
struct PlusBias : torch::autograd::Function<PlusBias> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor& bias) {
    return x + bias;
  }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors& gradients) {
    return {gradients[0], gradients[0].sum(0)};
  }
};

}  // namespace

at::Tensor TimesWeight::forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                const at::Tensor& weight) {
  context->save_for_backward({x, weight});
  return x.matmul(weight);
}
Tensors TimesWeight::backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
  const Tensors saved = context->get_saved_variables();
  return {gradients[0].matmul(saved[1].t()), saved[0].t().matmul(gradients[0])};
}

at::Tensor custom(torch::nn::Sequential& layers, at::Tensor x) {
  for (size_t i = 0; i < layers->size(); ++i) {
    x = PlusBias::apply(TimesWeight::apply(x, layer(layers, i).weight), layer(layers, i).bias);
  }
  return x;
}

at::Tensor in_a_row(torch::nn::Sequential& layers, const at::Tensor& x) {
  return layers->forward(x);
}

torch::nn::Sequential rows_of_linears(int count) {
  return build_seeded(5, [&] {
    torch::nn::Sequential made;
    for (int i = 0; i < count; ++i) made->push_back(torch::nn::Linear(4, 4));
    return made;
  });
}

torch::nn::LinearImpl& layer(torch::nn::Sequential& layers, size_t i) {
  return *layers[i]->as<torch::nn::Linear>();
}

at::Tensor input_of(int rank) { return values({2, 4}, 30 + rank); }

torch::nn::Sequential plain_after(const RankForward& forward, int world, int count) {
  torch::nn::Sequential plain = rows_of_linears(count);
  mean_gradients(*plain, world,
                 [&](int rank) { forward(plain, input_of(rank), rank).square().sum().backward(); });
  return plain;
}

void check_gradients(Engine& engine, const torch::nn::Sequential& plain) {
  const auto expected = plain->named_parameters();
  for (const ShardedParameter& parameter : engine.sharded_parameters()) {
    CAPTURE(parameter.fqn);
    if (parameter.local.numel() == 0 || !parameter.trainable) continue;
    REQUIRE(parameter.local.grad().defined());
    const at::Tensor whole = expected[parameter.fqn].grad().flatten();
    CHECK(bit_equal(whole.narrow(0, parameter.begin, parameter.local.numel()),
                    parameter.local.grad().cpu()));
  }
}

void check_ranks_as_plain(const RankForward& forward, int world, Options options, int count) {
  const torch::nn::Sequential plain = plain_after(forward, world, count);
  if (!options.units.is_set()) options.units = by_type<torch::nn::Linear>();
  options.debug = true;
  run_torch_ranks(world, [&](Mesh mesh) {
    torch::nn::Sequential layers = rows_of_linears(count);
    Engine engine(layers, mesh, options);
    for (int step = 0; step < 3; ++step) {
      engine.zero_grad();
      engine
          .forward(
              [&](const at::Tensor& x) { return forward(layers, x, mesh.rank()).square().sum(); },
              input_of(mesh.rank()).to(engine.device()))
          .backward();
      check_gradients(engine, plain);
    }
  });
}

void check_as_plain(const Forward& forward, int world, Options options, int count) {
  check_ranks_as_plain(
      [&](torch::nn::Sequential& layers, const at::Tensor& x, int) { return forward(layers, x); },
      world, std::move(options), count);
}

}  // namespace fsdp::testing
