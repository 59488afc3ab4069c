// The Llama of the examples: what it predicts from, its places, and itself on shards.
#include "models/llama.h"

#include <fsdp/engine.h>
#include <fsdp/error.h>

#include <vector>

#include "support/torch_doctest.h"
#include "support/torch_ranks.h"

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

at::Tensor llama_loss(fsdp::Unit<llama::Llama>& model, const at::Tensor& ids) {
  const at::Tensor logits = model(ids.slice(1, 0, -1));
  return at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1).flatten());
}

}  // namespace

TEST_CASE("llama: a later token changes no earlier logit, and every later one") {
  auto model = small_llama();
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = llama_ids(1);
  const at::Tensor logits = model(ids);
  CHECK(logits.sizes().vec() == std::vector<int64_t>{3, 8, kSmallLlama.vocabulary});
  for (int64_t place = 0; place < 8; ++place) {
    CAPTURE(place);
    at::Tensor changed = ids.clone();
    changed.select(1, place).add_(1).remainder_(kSmallLlama.vocabulary);
    const at::Tensor difference = (model(changed) - logits).abs().amax({0, 2});
    for (int64_t each = 0; each < 8; ++each) {
      CAPTURE(each);
      CHECK((difference[each].item<double>() > 1e-7) == (each >= place));
    }
  }
}

TEST_CASE("llama: a token's place counts") {
  auto model = small_llama();
  const torch::NoGradGuard no_grad;
  // Without places the last token would see a set, in which these two are the same.
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
    // Head by head, each for two of the queries'.
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
  llama_loss(tied, llama_ids(3)).backward();
  for (const auto& item : tied->named_parameters()) {
    CAPTURE(item.key());
    CHECK(item.value().grad().defined());
  }
}

TEST_CASE("llama: on shards it has the plain model's initial values, loss and gradients") {
  auto plain = small_llama();
  const at::Tensor ids = llama_ids(4);
  const at::Tensor plain_loss = llama_loss(plain, ids);
  plain_loss.backward();
  const auto gradients = plain->named_parameters();
  for (const int recompute : {0, 1}) {
    run_torch_ranks(2, [&](fsdp::Mesh mesh) {
      fsdp::BuildScope building(
          mesh, {.recompute = recompute, .unit_options = llama::unit_options, .seed = 7});
      fsdp::Unit<llama::Llama> model(kSmallLlama);
      fsdp::Engine engine(model, building);
      const at::Tensor loss = llama_loss(model, ids);
      loss.backward();
      CHECK(bit_equal(loss.detach(), plain_loss.detach()));
      for (const fsdp::ShardedParameter& parameter : engine.sharded_parameters()) {
        CAPTURE(parameter.fqn);
        if (parameter.local.numel() == 0) continue;
        const int64_t end = parameter.begin + parameter.local.numel();
        const at::Tensor expected =
            gradients[parameter.fqn].grad().flatten().slice(0, parameter.begin, end);
        CHECK(torch::allclose(parameter.local.grad(), expected, 1e-6, 1e-9));
      }
    });
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
