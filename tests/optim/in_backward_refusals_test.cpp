// Tests the calls that throw with Options::optimizer_in_backward.
#include <fsdp/ema.h>
#include <fsdp/loss_scaler.h>
#include <fsdp/optim.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "optim/support/gan.h"
#include "optim/support/same_parameters.h"

using namespace fsdp;
using namespace fsdp::testing;
using doctest::Contains;

namespace {

std::unique_ptr<Optimizer> adamw_in_backward(Engine& engine) {
  return std::make_unique<AdamW>(engine, AdamWOptions{.lr = 1e-2, .skip_nonfinite = false});
}

// Runs `body` with an engine of three units, on two ranks.
void run_engines(
    const std::function<void(Engine& engine, torch::nn::Module& model, int rank)>& body,
    Options options = {}) {
  options.optimizer_in_backward = true;
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
    Engine engine(model, mesh, options);
    body(engine, *model, mesh.rank());
  });
}

}  // namespace

TEST_CASE("optimizers that need all gradients are refused when they are made") {
  run_engines([](Engine& engine, torch::nn::Module&, int) {
    CHECK_THROWS_WITH_AS(AdamW(engine, AdamWOptions{}), Contains("AdamW has skip_nonfinite = true"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(Lamb(engine, {.skip_nonfinite = false}),
                         Contains("Lamb cannot update units in a backward"), InvalidArgument);
    CHECK_THROWS_WITH_AS(Lars(engine, {.skip_nonfinite = false}),
                         Contains("its trust ratios need the norms of all parameters"),
                         InvalidArgument);
    CHECK_THROWS_WITH_AS(LossScaler(engine, {}),
                         Contains("fsdp::LossScaler is not possible with optimizer_in_backward"),
                         StateError);
    // A refused optimizer leaves nothing behind.
    const AdamW all(engine, {.skip_nonfinite = false});
  });
  run_torch_ranks(2, [](Mesh mesh) {
    for (const bool in_one_unit : {true, false}) {
      const auto model = build_seeded(7, gan_twin(in_one_unit).make);
      Engine engine(model, mesh, {.optimizer_in_backward = true});
      const AdamW first(engine, {.parameters = under("generator"), .skip_nonfinite = false});
      const AdamWOptions second{.parameters = under("discriminator"), .skip_nonfinite = false};
      if (in_one_unit) {
        CHECK_THROWS_WITH_AS(AdamW(engine, second),
                             Contains("would have two optimizers: AdamW of 'generator' and AdamW "
                                      "of 'discriminator' (Options::optimizer_in_backward)"),
                             StateError);
      } else {
        CHECK_NOTHROW(AdamW(engine, second));
      }
    }
  });
}

TEST_CASE("calls that need the gradients after a backward are refused") {
  run_engines([](Engine& engine, torch::nn::Module& model, int rank) {
    const auto optimizer = adamw_in_backward(engine);
    const std::vector<at::Tensor> shards = engine.parameters();
    graph_loss(model, 0, rank).backward();
    const char* not_possible = "is not possible with optimizer_in_backward";
    CHECK_THROWS_WITH_AS(optimizer->clip_grad_norm(1.0), Contains(not_possible), StateError);
    CHECK_THROWS_WITH_AS(engine.clip_grad_norm(1.0), Contains(not_possible), StateError);
    CHECK_THROWS_WITH_AS(engine.measure_gradients(), Contains(not_possible), StateError);
    CHECK_THROWS_WITH_AS(GradSync(engine, false), Contains(not_possible), StateError);
    CHECK_THROWS_WITH_AS(GradSync(engine, GradientSync::kInside), Contains(not_possible),
                         StateError);
    { const GradSync all(engine, true); }
    for (const at::Tensor& each : shards) {
      if (each.numel() == 0) continue;
      CHECK_THROWS_WITH(each.grad().sum(), Contains("were used by the update in backward"));
    }
    optimizer->step();
    optimizer->zero_grad();
    for (const at::Tensor& each : shards) CHECK_FALSE(each.grad().defined());
    // The views stay usable, and so does the training.
    graph_loss(model, 1, rank).backward();
    optimizer->step();
  });
}

TEST_CASE("each backward needs an optimizer and its own step, outside of forwards and averages") {
  run_engines([](Engine& engine, torch::nn::Module& model, int rank) {
    CHECK_THROWS_WITH_AS(graph_loss(model, 0, rank).backward(),
                         Contains("the engine has no optimizer"), StateError);
    const auto optimizer = adamw_in_backward(engine);
    graph_loss(model, 0, rank).backward();
    const Parameters once = full_parameters(engine);
    for (int i = 0; i < 2; ++i) {
      CHECK_THROWS_WITH_AS(graph_loss(model, 1, rank).backward(),
                           Contains("a second backward began before the step of AdamW ended"),
                           StateError);
    }
    check_same_bits(full_parameters(engine), once);
    optimizer->step();
    optimizer->step();  // a step without a backward is counted, as always
    CHECK(optimizer->steps() == 2);
    check_same_bits(full_parameters(engine), once);
    Ema ema(engine);
    {
      const at::Tensor loss = graph_loss(model, 2, rank);
      const AveragedWeights averaged(ema);
      CHECK_THROWS_WITH_AS(loss.backward(), Contains("while an AveragedWeights exists"),
                           StateError);
    }
    graph_loss(model, 3, rank).backward();
    optimizer->step();
  });
  const auto inside = [](GraphImpl& graph, const at::Tensor& x) {
    if (graph.step == 1) torch::tanh(graph.units[0](x)).sum().backward();
    return in_a_row(graph, x);
  };
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(3, 6, inside).make);
    Engine engine(model, mesh, {.optimizer_in_backward = true});
    const auto optimizer = adamw_in_backward(engine);
    CHECK_THROWS_WITH_AS(graph_loss(*model, 1, mesh.rank()),
                         Contains("a backward inside a forward is not possible"), StateError);
    graph_loss(*model, 0, mesh.rank()).backward();
    optimizer->step();
  });
}

TEST_CASE("a hook that uses a unit after its update is refused") {
  run_engines([](Engine& engine, torch::nn::Module& model, int rank) {
    const auto optimizer = adamw_in_backward(engine);
    auto& graph = dynamic_cast<GraphImpl&>(model);
    const at::Tensor h = torch::tanh(graph.units[0](values({2, 6}, 1 + rank)));
    h.register_hook([&](const at::Tensor& gradient) {
      const torch::NoGradGuard no_grad;
      graph.units[2](values({2, 6}, 1));
      return gradient;
    });
    CHECK_THROWS_WITH_AS(graph.units[2](torch::tanh(graph.units[1](h))).sum().backward(),
                         Contains("a backward used a unit again after it had updated the unit"),
                         StateError);
  });
}

TEST_CASE("two optimizers end their own steps") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, gan_twin(/*in_one_unit=*/false).make);
    Engine engine(model, mesh, {.optimizer_in_backward = true});
    AdamW generator(engine, {.parameters = under("generator"), .skip_nonfinite = false});
    AdamW discriminator(engine, {.parameters = under("discriminator"), .skip_nonfinite = false});
    gan_loss(*model, 0, mesh.rank(), /*of_generator=*/false).backward();
    discriminator.step();
    gan_loss(*model, 0, mesh.rank(), /*of_generator=*/true).backward();  // reaches both
    generator.step();
    CHECK_THROWS_WITH_AS(gan_loss(*model, 1, mesh.rank(), false).backward(),
                         Contains("before the step of AdamW of 'discriminator' ended"), StateError);
    discriminator.step();
    gan_loss(*model, 1, mesh.rank(), false).backward();
    discriminator.step();
    CHECK(generator.steps() == 1);
    CHECK(discriminator.steps() == 3);
  });
}

TEST_CASE("after a backward that threw between updates, zero_grad accepts the weights") {
  run_engines([](Engine& engine, torch::nn::Module& model, int rank) {
    const auto optimizer = adamw_in_backward(engine);
    const auto fail_after = [&](int unit) {
      auto& graph = dynamic_cast<GraphImpl&>(model);
      at::Tensor h = values({2, 6}, 1 + rank);
      for (int i = 0; i < 3; ++i) {
        h = torch::tanh(graph.units[i](h));
        if (i != unit) continue;
        h.register_hook(
            [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("thrown"); });
      }
      CHECK_THROWS_WITH(h.sum().backward(), "thrown");
    };
    const Parameters before = full_parameters(engine);
    fail_after(2);  // no unit is updated yet
    check_same_bits(full_parameters(engine), before);
    engine.zero_grad();
    graph_loss(model, 0, rank).backward();
    optimizer->step();
    const Parameters between = full_parameters(engine);
    fail_after(0);
    CHECK_FALSE(bit_equal(full_parameters(engine).at("u2.weight"), between.at("u2.weight")));
    CHECK(bit_equal(full_parameters(engine).at("u0.weight"), between.at("u0.weight")));
    const char* torn = "is not allowed after a failed backward";
    CHECK_THROWS_WITH_AS(optimizer->step(), Contains(torn), StateError);
    CHECK_THROWS_WITH_AS(graph_loss(model, 1, rank).backward(), Contains(torn), StateError);
    optimizer->zero_grad();
    graph_loss(model, 1, rank).backward();
    optimizer->step();
  });
}
