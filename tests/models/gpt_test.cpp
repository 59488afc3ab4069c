// Tests the GPT of the examples: the inputs of its predictions, its initial values, and training on
// shards.
#include "models/gpt.h"

#include <fsdp/engine.h>
#include <fsdp/error.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/support/language_model.h"

using namespace fsdp::testing;

namespace {

constexpr gpt::GptConfig kSmall{
    .layers = 2, .hidden = 32, .heads = 4, .block_size = 8, .vocabulary = 50};

fsdp::Unit<gpt::Gpt> small_gpt() {
  return build_seeded(7, [] { return fsdp::Unit<gpt::Gpt>(kSmall); });
}

at::Tensor ids_of(uint64_t seed, int64_t length = 8) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return torch::randint(kSmall.vocabulary, {3, length}, generator, torch::kLong);
}

double deviation(const at::Tensor& weight) { return weight.std().item<double>(); }

}  // namespace

TEST_CASE("a later token changes no earlier logit, and every later one") {
  auto model = small_gpt();
  check_causal(model, ids_of(1), kSmall.vocabulary, 1e-6);
}

TEST_CASE("shorter sequences have the logits of the whole one's beginning") {
  auto model = small_gpt();
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = ids_of(2);
  const at::Tensor logits = model(ids);
  for (const int64_t length : {1, 5, 8}) {
    CHECK(torch::allclose(model(ids.slice(1, 0, length)), logits.slice(1, 0, length), 1e-5, 1e-6));
  }
}

TEST_CASE("a new model holds every token for about equally likely") {
  for (const std::string preset : {"tiny", "mini"}) {
    CAPTURE(preset);
    const gpt::GptConfig config = gpt::preset_config(preset);
    auto model = build_seeded(3, [&] { return fsdp::Unit<gpt::Gpt>(config); });
    const torch::NoGradGuard no_grad;
    const at::Tensor ids = torch::randint(config.vocabulary, {16, config.block_size + 1});
    // The head is the embedding of the tokens. So the current token is slightly more likely than
    // others.
    CHECK(next_token_loss(model, ids).item<double>() ==
          doctest::Approx(std::log(config.vocabulary)).epsilon(0.02));
  }
}

TEST_CASE("initial weights are GPT-2's: projections onto the residual stream start smaller") {
  const gpt::GptConfig config{
      .layers = 8, .hidden = 128, .heads = 2, .block_size = 64, .vocabulary = 256};
  auto model = build_seeded(5, [&] { return fsdp::Unit<gpt::Gpt>(config); });
  // A tensor has at least 16,384 weights, so the measured deviation is within 3 % of the true one.
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.03); };
  CHECK(deviation(model->tokens->weight) == near(0.02));
  for (const auto& block : model->blocks) {
    CHECK(deviation(block->query_key_value->weight) == near(0.02));
    CHECK(deviation(block->mlp_up->weight) == near(0.02));
    CHECK(deviation(block->attention_out->weight) == near(0.02 / 4));
    CHECK(deviation(block->mlp_down->weight) == near(0.02 / 4));
    CHECK(block->mlp_up->bias.abs().max().item<double>() == 0);
  }
}

TEST_CASE("the head has no weight of its own") {
  const gpt::GptConfig config = gpt::preset_config("tiny");
  const int64_t h = config.hidden;
  int64_t count = 0;
  fsdp::Unit<gpt::Gpt> model(config);
  for (const at::Tensor& parameter : model->parameters()) count += parameter.numel();
  CHECK(count == (config.vocabulary + config.block_size) * h + 2 * h +  // embeddings, last norm
                     config.layers * (12 * h * h + 13 * h));            // blocks
}

TEST_CASE("an unknown preset is refused with the choices") {
  try {
    gpt::preset_config("huge");
    FAIL("accepted");
  } catch (const fsdp::InvalidArgument& error) {
    CHECK(error.code() == fsdp::ExitCode::kUsage);
    CHECK(std::string(error.what()).find("choose from tiny, mini, gpt2") != std::string::npos);
  }
}

TEST_CASE("on shards it has the plain model's initial values, loss and gradients") {
  auto plain = small_gpt();
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    check_on_shards(plain, kSmall, ids_of(4), world, {.seed = 7});
  }
}

TEST_CASE("generated tokens depend on seed and temperature, and not on the ranks") {
  using Ids = std::vector<int64_t>;
  const Ids prompt{1, 2, 3};
  const gpt::Sampling sampling{.tokens = 20, .temperature = 1.0, .seed = 9};  // beyond block_size
  auto plain = small_gpt();
  const Ids expected = gpt::generate(plain, prompt, sampling);
  CHECK(expected.size() == 23);
  CHECK(Ids(expected.begin(), expected.begin() + 3) == prompt);
  CHECK(gpt::generate(plain, prompt, {.tokens = 20, .temperature = 1.0, .seed = 10}) != expected);

  // At a temperature near zero, the most likely token is drawn with every seed.
  const torch::NoGradGuard no_grad;
  const at::Tensor likeliest = plain(torch::tensor(prompt).unsqueeze(0))[0][-1].argmax();
  for (const uint64_t seed : {9, 10, 11}) {
    const gpt::Sampling coldest{.tokens = 1, .temperature = 1e-4, .seed = seed};
    CHECK(gpt::generate(plain, prompt, coldest).back() == likeliest.item<int64_t>());
  }

  run_torch_ranks(3, [&](fsdp::Mesh mesh) {
    fsdp::BuildScope building(mesh, {.seed = 7});
    fsdp::Unit<gpt::Gpt> model(kSmall);
    fsdp::Engine engine(model, building);
    CHECK(gpt::generate(model, prompt, sampling) == expected);
  });
}
