// Tests averages of weights against averages that LibTorch's operators compute on whole weights.
#include <fsdp/ema.h>
#include <fsdp/optim.h>

#include <algorithm>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Weights = std::map<std::string, at::Tensor>;

const Twin kAveraged = graph_twin(3, 9, in_a_row);

// Averages as the header defines them.
struct PlainAverage {
  void update(const Weights& weights) {
    const double rising = (1.0 + updates) / (10.0 + updates);
    const auto weight = static_cast<float>(1 - std::min(decay, rising));
    for (auto& [fqn, average] : averages) {
      average = average + (weights.at(fqn) - average) * weight;
    }
    ++updates;
  }
  Weights averages;
  double decay;
  int updates = 0;
};

void check_close(const Weights& one, const Weights& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [fqn, value] : one) {
    CAPTURE(fqn);
    CHECK(torch::allclose(value, other.at(fqn), 1e-6, 1e-7));
  }
}

void check_equal(const Weights& one, const Weights& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [fqn, value] : one) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, other.at(fqn)));
  }
}

void poison_gradients(Engine& engine) {
  for (ShardedParameter& each : engine.sharded_parameters()) {
    if (each.local.numel() > 0) {
      each.local.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    }
  }
}

}  // namespace

TEST_CASE("averages follow the weights in every strategy, and skipped steps change nothing") {
  for (const Strategy strategy : kAllStrategies) {
    for (const bool offload : {false, true}) {
      if (is_simulated_gpu() && strategy != Strategy::kHybridShard) continue;
      CAPTURE(name_of(strategy));
      CAPTURE(offload);
      run_torch_ranks({.replicate = 2, .shard = 2}, [&](Mesh mesh) {
        const auto model = build_seeded(7, kAveraged.make);
        Engine engine(model, mesh, {.cpu_offload = offload, .strategy = strategy});
        AdamW optimizer(engine, {.lr = 1e-2});
        Ema ema(engine, {.decay = 0.3});
        PlainAverage plain{.averages = full_parameters(engine), .decay = 0.3};
        for (int step = 0; step < 6; ++step) {
          graph_loss(*model, step, mesh.rank()).backward();
          if (step == 2 || step == 3) poison_gradients(engine);
          const StepReport report = optimizer.step();
          // If the program reads the report before the update, the host decides.
          if (step == 3 || step == 4) CHECK(report.skipped() == (step == 3));
          ema.update(report);
          optimizer.zero_grad();
          if (step != 2 && step != 3) plain.update(full_parameters(engine));
        }
        CHECK(ema.updates() == 4);
        const Weights before = full_parameters(engine);
        {
          const AveragedWeights averaged(ema);
          check_close(full_parameters(engine), plain.averages);
        }
        check_equal(full_parameters(engine), before);
      });
    }
  }
}

TEST_CASE("an evaluation with averages uses them, also in bfloat16") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto model = build_seeded(7, kAveraged.make);
      Engine engine(model, mesh,
                    {.mixed_precision = {.param_dtype = torch::kBFloat16}, .strategy = strategy});
      SGD optimizer(engine, {.lr = 0.5});
      Ema ema(engine, {.decay = 1, .warmup = false});  // the average stays the first weights
      const auto loss_now = [&] {
        const torch::NoGradGuard no_grad;
        return graph_loss(*model, 9, 0).item<float>();
      };
      const float first = loss_now();
      graph_loss(*model, 0, mesh.rank()).backward();
      ema.update(optimizer.step());
      const float trained = loss_now();
      CHECK(trained != first);
      {
        const AveragedWeights averaged(ema);
        CHECK(loss_now() == first);
      }
      CHECK(loss_now() == trained);
    });
  }
}

TEST_CASE("a parameter that is unfrozen later gets an average that begins with its weight") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, kAveraged.make);
    for (auto& each : model->named_parameters()) {
      each.value().set_requires_grad(each.key().starts_with("u0"));
    }
    Engine engine(model, mesh);
    Ema ema(engine, {.decay = 0.5});
    SGD optimizer(engine, {.lr = 0.5});
    PlainAverage plain{.averages = full_parameters(engine), .decay = 0.5};
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        for (const at::Tensor& each : model->parameters()) each.set_requires_grad(true);
      }
      const Weights before = full_parameters(engine);
      graph_loss(*model, step, mesh.rank()).backward();
      ema.update(optimizer.step());
      optimizer.zero_grad();
      const Weights after = full_parameters(engine);
      if (step == 2) {
        for (auto& [fqn, average] : plain.averages) {
          if (!fqn.starts_with("u0")) average = after.at(fqn);
        }
      }
      plain.update(after);
    }
    const AveragedWeights averaged(ema);
    check_close(full_parameters(engine), plain.averages);
  });
}

namespace {

struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl()
      : linear(register_module("linear", torch::nn::Linear(4, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)).square().mean(); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Normalized);

}  // namespace

TEST_CASE("buffers are averaged if that is asked") {
  run_torch_ranks(2, [](Mesh mesh) {
    torch::manual_seed(3);
    Unit<Normalized> model;
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.1});
    Ema ema(engine, {.decay = 0.5, .buffers = true});
    const auto mean = [&] { return model->norm->running_mean.clone(); };
    PlainAverage plain{.averages = {{"mean", mean()}}, .decay = 0.5};
    for (int step = 0; step < 3; ++step) {
      engine.forward([&] { return model(values({6, 4}, 10 * step + mesh.rank())); }).backward();
      ema.update(optimizer.step());
      optimizer.zero_grad();
      plain.update({{"mean", mean()}});
    }
    const at::Tensor before = mean();
    const at::Tensor tracked = model->norm->num_batches_tracked.clone();
    {
      const AveragedWeights averaged(ema);
      check_close({{"mean", mean()}}, plain.averages);
      CHECK(torch::equal(model->norm->num_batches_tracked, tracked));
    }
    CHECK(torch::equal(mean(), before));
  });
}

TEST_CASE("steps, updates, and graphs from before are refused while weights are averages") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, kAveraged.make);
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.5});
    Ema ema(engine);
    CHECK_THROWS_WITH_AS(Ema(engine, {.decay = 1.5}), doctest::Contains("Ema: decay is 1.5"),
                         InvalidArgument);
    const at::Tensor loss = graph_loss(*model, 0, mesh.rank());
    {
      const AveragedWeights averaged(ema);
      CHECK_THROWS_WITH_AS(optimizer.step(),
                           doctest::Contains("an optimizer's step was called while an "
                                             "AveragedWeights exists"),
                           StateError);
      CHECK_THROWS_AS(ema.update(), StateError);
      CHECK_THROWS_AS(AveragedWeights{ema}, StateError);
      CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"),
                           c10::Error);
    }
  });
}

TEST_CASE("the bytes of averages are counted by the engine and given back") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, kAveraged.make);
    Engine engine(model, mesh, {});
    const auto counted = [&] {
      CHECK(engine.memory_plan().rest == engine.stats().memory.in_use);
      return engine.stats().memory.in_use[MemoryCategory::kOptimizerState];
    };
    const int64_t main = engine.stats().memory.in_use[MemoryCategory::kMainShards];
    {
      const Ema ema(engine);
      // The average, the counter, and room for an exchange: here one segment.
      CHECK(counted() > main);
      CHECK(counted() < 2 * main);
    }
    CHECK(counted() == 0);
  });
}
