// Tests the Llama of the examples: the inputs of its predictions, its positions, and training on
// shards.
#include "models/llama.h"

#include <fsdp/engine.h>
#include <fsdp/error.h>

#include <vector>

#include "models/support/language_model.h"

using namespace fsdp::testing;

namespace {

constexpr llama::LlamaConfig kSmallLlama{.layers = 2,
                                         .hidden = 32,
                                         .heads = 4,
                                         .key_value_heads = 2,
                                         .intermediate = 48,
                                         .vocabulary = 50,
                                         .longest = 16};

fsdp::Unit<llama::Llama> small_llama(llama::LlamaConfig config = kSmallLlama) {
  return build_seeded(7, [&] { return fsdp::Unit<llama::Llama>(config); });
}

at::Tensor llama_ids(uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return torch::randint(kSmallLlama.vocabulary, {3, 8}, generator, torch::kLong);
}

}  // namespace

TEST_CASE("llama: a later token changes no earlier logit, and every later one") {
  auto model = small_llama();
  check_causal(model, llama_ids(1), kSmallLlama.vocabulary, 1e-7);
}

TEST_CASE("llama: a token's place counts") {
  auto model = small_llama();
  const torch::NoGradGuard no_grad;
  // Without positions, attention would see only a set of tokens. The first three tokens of both
  // rows are the same set.
  const at::Tensor ids = torch::tensor({{1, 2, 3, 9}, {2, 3, 1, 9}}, torch::kLong);
  const at::Tensor last = model(ids).select(1, 3);
  CHECK((last[0] - last[1]).abs().max().item<double>() > 1e-7);
}

TEST_CASE("llama: grouped heads are whole ones whose keys and values are equal") {
  auto grouped = small_llama();
  llama::LlamaConfig whole_config = kSmallLlama;
  whole_config.key_value_heads = whole_config.heads;
  auto whole = small_llama(whole_config);
  const torch::NoGradGuard no_grad;
  auto of_grouped = grouped->named_parameters();
  for (auto& item : whole->named_parameters()) {
    at::Tensor value = of_grouped[item.key()];
    const bool is_grouped =
        item.key().ends_with(".key.weight") || item.key().ends_with(".value.weight");
    // Repeats each head for the two query heads that share the head.
    if (is_grouped) value = value.view({2, 8, 32}).repeat_interleave(2, 0).view({32, 32});
    item.value().copy_(value);
  }
  const at::Tensor ids = llama_ids(2);
  CHECK(torch::allclose(grouped(ids), whole(ids), 1e-5, 1e-6));
}

TEST_CASE("llama: a tied head has no weight of its own") {
  llama::LlamaConfig config = kSmallLlama;
  config.ties_head = true;
  const auto count = [](const auto& model) {
    int64_t numel = 0;
    for (const at::Tensor& each : model->parameters()) numel += each.numel();
    return numel;
  };
  CHECK(count(small_llama()) - count(small_llama(config)) == 50 * 32);
  auto tied = small_llama(config);
  next_token_loss(tied, llama_ids(3)).backward();
  for (const auto& item : tied->named_parameters()) {
    CAPTURE(item.key());
    CHECK(item.value().grad().defined());
  }
}

TEST_CASE("llama: on shards it has the plain model's initial values, loss and gradients") {
  auto plain = small_llama();
  for (const int recompute : {0, 1}) {
    CAPTURE(recompute);
    check_on_shards(plain, kSmallLlama, llama_ids(4), 2,
                    {.recompute = recompute, .unit_options = llama::unit_options, .seed = 7});
  }
}

TEST_CASE("llama: an unknown preset is refused with the choices") {
  try {
    llama::preset_config("8b");
    FAIL("accepted");
  } catch (const fsdp::InvalidArgument& error) {
    CHECK(error.code() == fsdp::ExitCode::kUsage);
    CHECK(std::string(error.what()).find("choose from tiny, 7b") != std::string::npos);
  }
}
