// Trains the GPT of ports/nanogpt on thread ranks. It has tied weights, clips gradients, and
// generates text.
#include <fsdp/unit.h>

#include "ports/nanogpt/plain_model.h"
#include "ports/nanogpt/sharded_model.h"
#include "ports/support/port.h"
#include "ports/support/twins.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct GptRun {
  std::vector<double> losses;
  at::Tensor written;
};

constexpr double kGptLr = 1e-2;
// The limit for losses. The norm is summed in another order, and fsdp's AdamW rounds differently.
constexpr double kGptMost = 2e-5;

template <class Model>
at::Tensor gpt_loss(const ports::Part& part, Model& model) {
  const auto [ids, next] = ports::counting(part, 31, 16);
  const at::Tensor logits = model(ids);
  return at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
}

template <class Model>
at::Tensor write_on(Model& model) {  // takes the most likely token, as threads share one generator
  return model->generate(torch::tensor({{1, 2, 3}}), 20, /*top_k=*/1);
}

torch::optim::AdamW make_torch_adamw(std::vector<at::Tensor> decayed,
                                     std::vector<at::Tensor> others) {
  using Options = torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decayed),
                      std::make_unique<Options>(Options(kGptLr).weight_decay(0.1)));
  groups.emplace_back(std::move(others),
                      std::make_unique<Options>(Options(kGptLr).weight_decay(0)));
  return torch::optim::AdamW(groups);
}

GptRun train_gpt_plainly(int world) {
  auto model = build_seeded(1, [] { return ports::plain_gpt::Gpt(ports::plain_gpt::GptConfig{}); });
  std::vector<at::Tensor> decayed, others;
  for (const at::Tensor& parameter : model->parameters())
    (parameter.dim() >= 2 ? decayed : others).push_back(parameter);
  torch::optim::AdamW optimizer = make_torch_adamw(decayed, others);
  GptRun run;
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    double sum = 0;
    mean_gradients(*model, world, [&](int rank) {
      const at::Tensor loss = gpt_loss({.step = step, .index = rank, .count = world}, model);
      sum += loss.item<double>();
      loss.backward();
    });
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    run.losses.push_back(sum / world);
  }
  run.written = write_on(model);
  return run;
}

template <class Optimizer>
GptRun run_gpt(Unit<ports::sharded_gpt::Gpt>& model, Engine& engine, Optimizer optimizer) {
  const Mesh& mesh = engine.mesh();
  GptRun run;
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss =
        gpt_loss({.step = step, .index = mesh.rank(), .count = mesh.world_size()}, model);
    loss.backward();
    engine.clip_grad_norm(1.0);
    optimizer->step();
    run.losses.push_back(mesh.mean(loss, "loss"));
  }
  {
    const UnitScope scope(*model);
    run.written = write_on(model);
  }
  // generate() uses the generator, even if there is only one choice. So no rank may build its next
  // model before all have finished.
  mesh.sum(0, "written");
  return run;
}

template <class MakeOptimizer>
GptRun train_gpt(const Mesh& mesh, MakeOptimizer make_optimizer) {
  auto model = build_seeded(
      1, [] { return Unit<ports::sharded_gpt::Gpt>(ports::sharded_gpt::GptConfig{}); });
  Engine engine(model, mesh, {.debug = true});
  return run_gpt(model, engine, make_optimizer(engine));
}

}  // namespace

TEST_CASE("a GPT with tied weights learns and writes as the plain program, with either AdamW") {
  for (const int world : kPortRanks) {
    CAPTURE(world);
    const GptRun plain = train_gpt_plainly(world);
    CHECK(plain.losses.back() < plain.losses.front());
    run_torch_ranks(world, [&](Mesh mesh) {
      const GptRun ours = train_gpt(mesh, [](Engine& engine) {
        return std::make_unique<AdamW>(
            engine, AdamWOptions{.lr = kGptLr, .weight_decay = 0.1, .groups = {{is_bias_or_norm}}});
      });
      check_values(ours.losses, plain.losses, kGptMost);
      CHECK(ours.written.equal(plain.written));
      const GptRun theirs = train_gpt(mesh, [](Engine& engine) {
        std::vector<at::Tensor> decayed, others;
        for (const ShardedParameter& parameter : engine.sharded_parameters())
          (parameter.shape.size() >= 2 ? decayed : others).push_back(parameter.local);
        return std::make_unique<torch::optim::AdamW>(make_torch_adamw(decayed, others));
      });
      check_values(theirs.losses, plain.losses, kGptMost);
      CHECK(theirs.written.equal(plain.written));
    });
  }
}
