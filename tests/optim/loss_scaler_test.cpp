#include <fsdp/loss_scaler.h>

#include <algorithm>
#include <cmath>

#include "base/cpu_features.h"
#include "engine/support/twin.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Model = std::shared_ptr<torch::nn::Module>;

Model make_row() { return build_seeded(7, graph_twin(2, 6, in_a_row).make); }

// Makes one step on every rank. On `odd_rank` the loss is multiplied by `factor`.
StepReport step(LossScaler& scaler, Optimizer& optimizer, torch::nn::Module& model,
                const Mesh& mesh, int odd_rank = -1, float factor = 1) {
  at::Tensor loss = graph_loss(model, 0, mesh.rank());
  if (mesh.rank() == odd_rank) loss = loss * factor;
  scaler.scale(loss).backward();
  const StepReport report = optimizer.step();
  scaler.update(report);
  optimizer.zero_grad();
  return report;
}

}  // namespace

TEST_CASE("the scale follows PyTorch's rules: halved by an overflow, doubled after an interval") {
  run_torch_ranks(2, [](Mesh mesh) {
    const Model model = make_row();
    Engine engine(model, mesh, {});
    SGD optimizer(engine, {.lr = 0.01});
    LossScaler scaler(engine, {.init_scale = 8, .growth_interval = 2});
    // For each step: whether it overflows, and the scale after it. The values are those of
    // torch.amp.GradScaler(init_scale=8, growth_interval=2).
    const std::vector<std::pair<bool, double>> expected = {
        {false, 8},  {false, 16}, {false, 16}, {true, 8},  {false, 8},
        {false, 16}, {true, 8},   {true, 4},   {false, 4}, {false, 8}};
    int64_t applied = 0;
    for (const auto& [overflows, scale] : expected) {
      const auto before = full_parameters(engine);
      const StepReport report =
          step(scaler, optimizer, *model, mesh, /*odd_rank=*/1, overflows ? INFINITY : 1.0F);
      CHECK(report.skipped() == overflows);
      CHECK(scaler.scale() == scale);
      applied += overflows ? 0 : 1;
      CHECK(optimizer.steps() == applied);
      if (!overflows) continue;
      for (const auto& [fqn, value] : full_parameters(engine)) {
        CHECK(bit_equal(value, before.at(fqn)));
      }
    }
    CHECK(scaler.state() == LossScaler::State{.scale = 8, .growth_tracker = 0});
  });
}

TEST_CASE("a scale that is a power of two changes no bit in float32, in any strategy") {
  for (const bool lends : {false, true}) {
    const Twin twin = lends ? lending_twin() : graph_twin(2, 6, in_a_row);
    for (const Strategy strategy : kStrategies) {
      if (lends && strategy != Strategy::kFullShard) continue;
      CAPTURE(lends);
      CAPTURE(name_of(strategy));
      std::array<std::map<std::string, at::Tensor>, 2> trained;
      for (const bool scaled : {false, true}) {
        run_torch_ranks(2, [&](Mesh mesh) {
          const Model model = build_seeded(7, twin.make);
          Engine engine(model, mesh, {.strategy = strategy});
          AdamW optimizer(engine, {.lr = 1e-2});
          std::optional<LossScaler> scaler;
          if (scaled) scaler.emplace(engine, LossScalerOptions{.init_scale = 1024});
          for (int i = 0; i < (lends ? 1 : 3); ++i) {
            const at::Tensor loss = twin.loss(*model, i, mesh.rank());
            (scaler ? scaler->scale(loss) : loss).backward();
            optimizer.clip_grad_norm(0.1);
            const StepReport report = optimizer.step();
            if (scaler) scaler->update(report);
            optimizer.zero_grad();
          }
          auto parameters = full_parameters(engine);
          if (mesh.rank() == 0) trained[scaled ? 1 : 0] = std::move(parameters);
        });
      }
      for (const auto& [fqn, value] : trained[0]) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, trained[1].at(fqn)));
      }
    }
  }
}

TEST_CASE("float16 gradients that would round to zero arrive") {
  const auto norm = [](double init_scale) {
    double norm = 0;
    run_torch_ranks(2, [&](Mesh mesh) {
      const Model model = make_row();
      Engine engine(model, mesh, {.mixed_precision = {.param_dtype = torch::kFloat16}});
      SGD optimizer(engine, {.lr = 0});
      LossScaler scaler(engine, {.init_scale = init_scale});
      const at::Tensor loss = graph_loss(*model, 0, mesh.rank()).to(at::kFloat) * 1e-9;
      scaler.scale(loss).backward();
      const double own = engine.measure_gradients().norm();
      if (mesh.rank() == 0) norm = own;
    });
    return norm;
  };
  const double lost = norm(1), kept = norm(1 << 20);
  CHECK(lost == 0);
  CHECK(kept > 0);
  CHECK(norm(1 << 22) == doctest::Approx(kept).epsilon(0.02));
}

TEST_CASE("a scaler's state goes on where it was, and wrong ones are refused") {
  run_torch_ranks(1, [](Mesh mesh) {
    const Model model = make_row();
    Engine engine(model, mesh, {});
    auto optimizer = std::make_unique<SGD>(engine, SgdOptions{.lr = 0.01});
    {
      LossScaler scaler(engine, {.growth_interval = 3});
      CHECK(scaler.scale() == 65536);
      scaler.load({.scale = 32, .growth_tracker = 2});
      step(scaler, *optimizer, *model, mesh);
      CHECK(scaler.state() == LossScaler::State{.scale = 64, .growth_tracker = 0});
      scaler.load({.scale = 1});
      CHECK_THROWS_WITH_AS(LossScaler{engine}, doctest::Contains("has a LossScaler already"),
                           StateError);
      for (const double wrong : {0.0, -1.0, double{INFINITY}, double{NAN}, 1e300, 1e-45}) {
        CHECK_THROWS_AS(scaler.load({.scale = wrong}), InvalidArgument);
      }
      optimizer.reset();
      SGD stubborn(engine, {.lr = 0.01, .skip_nonfinite = false});
      CHECK_THROWS_WITH_AS(
          scaler.update(stubborn.step()),
          doctest::Contains("update got a StepReport of an optimizer with skip_nonfinite = false"),
          InvalidArgument);
    }
    for (const LossScalerOptions& wrong :
         {LossScalerOptions{.init_scale = 0}, LossScalerOptions{.growth_factor = 1},
          LossScalerOptions{.backoff_factor = 1}, LossScalerOptions{.backoff_factor = 0},
          LossScalerOptions{.growth_interval = 0}}) {
      CHECK_THROWS_AS(LossScaler(engine, wrong), InvalidArgument);
    }
    const LossScaler again(engine);  // possible because the first one is destroyed
  });
}

TEST_CASE("a scale grows and falls as far as float32 goes") {
  run_torch_ranks(1, [](Mesh mesh) {
    const Model model = make_row();
    Engine engine(model, mesh, {});
    SGD optimizer(engine, {.lr = 0});
    LossScaler scaler(engine, {.growth_interval = 1});
    const double most = std::ldexp(1.0, 127), least = std::ldexp(1.0, -127);
    scaler.load({.scale = most});
    scaler.update(optimizer.step());
    CHECK(scaler.state() == LossScaler::State{.scale = most, .growth_tracker = 0});
    scaler.load({.scale = least});
    scaler.scale(graph_loss(*model, 0, 0) * INFINITY).backward();
    const StepReport overflow = optimizer.step();
    CHECK_THROWS_WITH_AS(scaler.update(overflow), doctest::Contains("the scale after an overflow"),
                         InvalidArgument);
    CHECK(scaler.state() == LossScaler::State{.scale = least, .growth_tracker = 0});
  });
}

TEST_CASE("scales that differ between ranks are refused by the next collective") {
  const auto errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        const Model model = make_row();
        Engine engine(model, mesh, {});
        LossScaler scaler(engine, {.init_scale = mesh.rank() == 0 ? 8.0 : 16.0});
        scaler.scale(graph_loss(*model, 0, mesh.rank())).backward();
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CHECK(error.find("loss scale 8") != std::string::npos);
    CHECK(error.find("loss scale 16") != std::string::npos);
  }
}

TEST_CASE("the skips with which a run finds its scale say so, later ones do not") {
  std::vector<std::string> warnings;
  RunRanksOptions options = torch_ranks_options();
  options.mesh.on_event = [&](const MeshEvent& event) { warnings.push_back(event.text.what); };
  run_ranks(
      2,
      [](const Mesh& mesh) {
        const Model model = make_row();
        Engine engine(model, mesh, {});
        SGD optimizer(engine, {.lr = 0.01});
        LossScaler scaler(engine, {.init_scale = 8});
        for (const bool overflows : {true, true, false, true, false}) {
          step(scaler, optimizer, *model, mesh, /*odd_rank=*/1, overflows ? INFINITY : 1.0F);
        }
      },
      options);
  CHECK(warnings ==
        std::vector<std::string>{"a step was skipped, and the loss scale is lowered to 4",
                                 "a step was skipped, and the loss scale is lowered to 2"});
}

TEST_CASE("training in float16 without a scaler is warned of once") {
  for (const bool scales : {false, true}) {
    std::vector<std::string> warnings;
    RunRanksOptions options = torch_ranks_options();
    options.mesh.on_event = [&](const MeshEvent& event) { warnings.push_back(event.text.what); };
    run_ranks(
        2,
        [scales](const Mesh& mesh) {
          const Model model = make_row();
          Engine engine(model, mesh, {.mixed_precision = {.param_dtype = torch::kFloat16}});
          SGD optimizer(engine, {.lr = 0.01});
          const auto scaler = scales ? std::make_unique<LossScaler>(engine) : nullptr;
          for (int i = 0; i < 2; ++i) graph_loss(*model, i, mesh.rank()).backward();
        },
        options);
    CHECK(std::ranges::count(warnings, "float16 training has no LossScaler") == (scales ? 0 : 1));
    const bool is_slow = !fast_products().float16 && ranks_of_environment() == nullptr;
    CHECK(std::ranges::count(warnings, "float16 is slow on this processor") == (is_slow ? 1 : 0));
  }
}
