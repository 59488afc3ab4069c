// Tests the constructors of fsdp's optimizers that take LibTorch's options.
#include <fsdp/optim.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const Twin kSmallTwin = graph_twin(2, 6, in_a_row);

// Returns the whole parameters after three steps.
template <class Made, class Options>
std::map<std::string, at::Tensor> train(const Options& options) {
  const auto model = build_seeded(7, kSmallTwin.make);
  Engine engine(model, Mesh::single());
  Made optimizer(engine, options);
  for (int step = 0; step < 3; ++step) {
    graph_loss(*model, step, 0).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return full_parameters(engine);
}

template <class Made, class Ours, class Torch>
void check_equal(const Ours& ours, const Torch& of_torch) {
  const auto expected = train<Made>(ours);
  for (const auto& [fqn, value] : train<Made>(of_torch)) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, expected.at(fqn)));
  }
}

}  // namespace

TEST_CASE("every option of torch::optim counts as fsdp's of that name") {
  check_equal<AdamW>(
      AdamWOptions{.lr = 3e-4, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2},
      torch::optim::AdamWOptions(3e-4).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.2));
  check_equal<AdamW>(AdamWOptions{}, torch::optim::AdamWOptions());
  check_equal<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.2},
                   torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.2));
  check_equal<SGD>(SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true},
                   torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST_CASE("an option of torch::optim that fsdp's optimizers do not have is refused") {
  const auto model = build_seeded(7, kSmallTwin.make);
  Engine engine(model, Mesh::single());
  CHECK_THROWS_WITH_AS(AdamW(engine, torch::optim::AdamWOptions(1e-3).amsgrad(true)),
                       doctest::Contains("torch::optim::AdamWOptions::amsgrad is set"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(AdamW(engine, torch::optim::AdamWOptions(-1)),
                       doctest::Contains("AdamW: lr is -1"), InvalidArgument);
  CHECK_FALSE(std::is_constructible_v<AdamW, Engine&, at::Tensor>);
}

TEST_CASE("braces make fsdp's options, as before") {
  const auto model = build_seeded(7, kSmallTwin.make);
  Engine engine(model, Mesh::single());
  CHECK(AdamW(engine, {}).lr() == 1e-3);
  CHECK(AdamW(engine, {3e-3}).lr() == 3e-3);
  CHECK(AdamW(engine, {.lr = 2e-3}).lr() == 2e-3);
  CHECK(SGD(engine, {}).lr() == 1e-3);
  CHECK(SGD(engine, {0.5}).lr() == 0.5);
  CHECK(SGD(engine, torch::optim::SGDOptions(0.25)).lr() == 0.25);
}
