// Checks that every language model of the examples must pass.
#pragma once

#include <fsdp/engine.h>

#include <vector>

#include "support/torch_doctest.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {

// Returns the loss of predicting each token from the tokens before it.
template <class Model>
at::Tensor next_token_loss(Unit<Model>& model, const at::Tensor& ids) {
  const at::Tensor logits = model(ids.slice(1, 0, -1));
  return at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1).flatten());
}

// Checks that a changed token changes the logits at its own and all later positions by more than
// `noise`, and changes no earlier logits.
template <class Model>
void check_causal(Unit<Model>& model, const at::Tensor& ids, int64_t vocabulary, double noise) {
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model(ids);
  const int64_t length = ids.size(1);
  CHECK(logits.sizes().vec() == std::vector<int64_t>{ids.size(0), length, vocabulary});
  for (int64_t place = 0; place < length; ++place) {
    CAPTURE(place);
    at::Tensor changed = ids.clone();
    changed.select(1, place).add_(1).remainder_(vocabulary);
    const at::Tensor difference = (model(changed) - logits).abs().amax({0, 2});
    for (int64_t each = 0; each < length; ++each) {
      CAPTURE(each);
      CHECK((difference[each].template item<double>() > noise) == (each >= place));
    }
  }
}

// Builds a model from `config` under a BuildScope and checks it against `plain`. `plain` must have
// been built with `options.seed`. Initial values and the loss must have the same bits. Gradients
// may differ by the rounding of their mean.
template <class Model, class Config>
void check_on_shards(Unit<Model>& plain, const Config& config, const at::Tensor& ids, int world,
                     const Options& options) {
  plain->zero_grad();
  const at::Tensor plain_loss = next_token_loss(plain, ids);
  plain_loss.backward();
  const auto gradients = plain->named_parameters();
  run_torch_ranks(world, [&](Mesh mesh) {
    BuildScope building(mesh, options);
    Unit<Model> model(config);
    Engine engine(model, building);
    const at::Tensor loss = next_token_loss(model, ids);  // equal on all ranks
    loss.backward();
    CHECK(bit_equal(loss.detach(), plain_loss.detach()));
    for (const ShardedParameter& parameter : engine.sharded_parameters()) {
      CAPTURE(parameter.fqn);
      if (parameter.local.numel() == 0) continue;
      const int64_t end = parameter.begin + parameter.local.numel();
      const at::Tensor expected =
          gradients[parameter.fqn].grad().flatten().slice(0, parameter.begin, end);
      CHECK(torch::allclose(parameter.local.grad(), expected, 1e-6, 1e-9));
    }
  });
}

}  // namespace fsdp::testing
