// Tests LAMB and LARS on parameters that the borders of ranks cut anywhere.
#include <fsdp/optim.h>

#include "fsdp/error.h"
#include "plan/placement.h"
#include "support/collective_log.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// A parameter of each size with irregular values. Its gradient depends on the step and is equal on
// all ranks, and of so few bits that a mean over 2, 3 or 5 ranks is exact.
struct IrregularImpl : torch::nn::Module {
  explicit IrregularImpl(std::vector<int64_t> numels) {
    for (const int64_t numel : numels) {
      const auto name = "p" + std::to_string(values.size());
      values.push_back(
          register_parameter(name, (at::arange(numel, at::kFloat) * 0.7 + 0.1).sin() * 0.3));
    }
  }
  at::Tensor forward(int64_t step) {
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& each : values) {
      const at::Tensor angle = at::arange(each.numel(), at::kFloat) * 0.31 + step;
      loss = loss + (each * (angle.cos() * 512).round() / 512).sum();
    }
    return loss;
  }
  std::vector<at::Tensor> values;
};
TORCH_MODULE(Irregular);

// With 2, 3 and 5 ranks, borders are inside blocks of 4,096 elements and inside small parameters.
struct IrregularNetImpl : torch::nn::Module {
  IrregularNetImpl()
      : parts{Unit<Irregular>(std::vector<int64_t>{70'001, 1, 4096}),
              Unit<Irregular>(std::vector<int64_t>{33, 9'999, 128})} {
    for (size_t i = 0; i < parts.size(); ++i) {
      register_module("part" + std::to_string(i), parts[i]);
    }
  }
  at::Tensor forward(int64_t step) { return parts[0](step) + parts[1](step); }
  std::vector<Unit<Irregular>> parts;
};
TORCH_MODULE(IrregularNet);

using Parameters = std::map<std::string, at::Tensor>;
using ManyOptimizers = std::vector<std::unique_ptr<Optimizer>>;
using MakeMany = std::function<ManyOptimizers(Engine&)>;

Parameters train_irregular(const MeshShape& shape, const Options& options, const MakeMany& make) {
  Parameters result;
  run_torch_ranks(shape, [&](Mesh mesh) {
    Unit<IrregularNet> model;
    Engine engine(model, mesh, options);
    const ManyOptimizers optimizers = make(engine);
    for (int step = 0; step < 4; ++step) {
      engine.forward([&] { return model(step); }).backward();
      for (const auto& optimizer : optimizers) {
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) result = std::move(parameters);
  });
  return result;
}

void check_irregular(const Parameters& one, const Parameters& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [fqn, value] : one) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, other.at(fqn)));
  }
}

ManyOptimizers lamb_of_all(Engine& engine) {
  ManyOptimizers made;
  made.push_back(std::make_unique<Lamb>(engine, LambOptions{.lr = 1e-2}));
  return made;
}

ManyOptimizers lars_of_all(Engine& engine) {
  ManyOptimizers made;
  made.push_back(std::make_unique<Lars>(engine, LarsOptions{.lr = 1.0, .weight_decay = 1e-3}));
  return made;
}

// LAMB, LARS and AdamW, each for some parameters. LARS and AdamW share a unit.
ManyOptimizers one_for_each(Engine& engine) {
  const auto named = [](std::string name) {
    return [name](const ShardedParameter& each) { return each.fqn == name; };
  };
  ManyOptimizers made;
  made.push_back(
      std::make_unique<Lamb>(engine, LambOptions{.lr = 1e-2, .parameters = under("part0")}));
  made.push_back(
      std::make_unique<Lars>(engine, LarsOptions{.lr = 1.0, .parameters = named("part1.p1")}));
  made.push_back(std::make_unique<AdamW>(
      engine, AdamWOptions{.lr = 1e-2, .parameters = [](const ShardedParameter& each) {
                             return under("part1")(each) && each.fqn != "part1.p1";
                           }}));
  return made;
}

}  // namespace

TEST_CASE("norms, and so all parameters, have the same bits for every number of ranks") {
  for (const auto make : {lamb_of_all, lars_of_all, one_for_each}) {
    const Parameters one = train_irregular({.shard = 1}, {}, make);
    for (const int world : {2, 3, 5}) {
      CAPTURE(world);
      check_irregular(one, train_irregular({.shard = world}, {}, make));
    }
    for (const Strategy strategy : kAllStrategies) {
      for (const bool offload : {false, true}) {
        if (is_simulated_gpu() && strategy != Strategy::kHybridShard) continue;
        CAPTURE(name_of(strategy));
        CAPTURE(offload);
        check_irregular(one, train_irregular({.replicate = 2, .shard = 2},
                                             {.cpu_offload = offload, .strategy = strategy}, make));
      }
    }
  }
}

// The reference computes in float64 on whole tensors.
TEST_CASE("a step of LAMB has the norms of whole parameters") {
  Unit<IrregularNet> model;
  const Parameters before = plain_parameters(*model);
  const Parameters after = train_irregular({.shard = 3}, {}, [](Engine& engine) {
    ManyOptimizers made;
    made.push_back(std::make_unique<Lamb>(engine, LambOptions{.lr = 1e-2, .weight_decay = 0.1}));
    return made;
  });
  for (const auto& [fqn, value] : before) {
    at::Tensor p = value.to(at::kDouble);
    at::Tensor m = at::zeros_like(p), v = at::zeros_like(p);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor g =
          ((at::arange(p.numel(), at::kFloat) * 0.31 + step).cos() * 512).round() / 512;
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      const at::Tensor r = (m / (1 - std::pow(0.9, step + 1))) /
                               ((v / (1 - std::pow(0.999, step + 1))).sqrt() + 1e-6) +
                           0.1 * p;
      p = p - 1e-2 * (p.norm() / r.norm()) * r;
    }
    CAPTURE(fqn);
    CHECK(torch::allclose(after.at(fqn).to(at::kDouble), p, 1e-5, 1e-6));
  }
}

TEST_CASE("a step sends one small all_reduce for the norms") {
  for (const int world : {1, 3}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      Unit<IrregularNet> model;
      Engine engine(model, mesh, {});
      Lamb lamb(engine, {.skip_nonfinite = false});
      engine.forward([&] { return model(0); }).backward();
      const CollectiveLog collectives(mesh);
      const size_t before = collectives.size();
      const int64_t sent = engine.stats().sent.other_bytes;
      lamb.step();
      CHECK(collectives.counts_since(before) ==
            (world == 1 ? CollectiveCounts{} : CollectiveCounts{{"all_reduce", 1}}));
      CHECK(engine.stats().sent.other_bytes - sent <= 2000);
    });
  }
}

TEST_CASE("options that LAMB and LARS cannot have are refused by name") {
  Unit<IrregularNet> model;
  Engine engine(model, Mesh::single(), {});
  CHECK_THROWS_WITH_AS(Lamb(engine, {.eps = -1}), doctest::Contains("Lamb: eps is -1"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(Lars(engine, {.trust_coefficient = -1}),
                       doctest::Contains("Lars: trust_coefficient is -1"), InvalidArgument);
  CHECK_THROWS_WITH_AS(Lars(engine, {.dampening = 0.5, .nesterov = true}),
                       doctest::Contains("Lars: an option is negative, or nesterov"),
                       InvalidArgument);
}
