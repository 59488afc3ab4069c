// Tests dtypes (of parameters, of gradients in collectives, of inputs and outputs), the division of
// gradients, norms, and whole parameters that are read and written.
#include <fmt/format.h>

#include "comm/mesh_state.h"
#include "engine/support/error_texts.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "support/collective_log.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Computes the engine's promise by hand. Master values are fp32, and the model is in `dtype`.
// Gradients are cast to `reduce`, summed in rank order in fp32, divided, rounded to `reduce`, and
// added in fp32. Then SGD steps.
Trained train_by_hand(const Twin& twin, int world, torch::ScalarType dtype,
                      torch::ScalarType reduce, int micro_batches) {
  Trained trained;
  const auto model = build_seeded(7, twin.make);
  std::map<std::string, at::Tensor> masters = plain_parameters(*model);
  model->to(dtype);
  for (int step = 0; step < twin.steps; ++step) {
    std::map<std::string, at::Tensor> main_gradients;
    for (int micro = 0; micro < micro_batches; ++micro) {
      std::map<std::string, at::Tensor> sums;
      for (int rank = 0; rank < world; ++rank) {
        model->zero_grad();
        const at::Tensor loss = twin.loss(*model, step * micro_batches + micro, rank);
        loss.backward();
        if (rank == 0) trained.losses.push_back(loss.item<float>());
        for (const auto& item : model->named_parameters()) {
          const at::Tensor wire = item.value().grad().to(reduce).to(torch::kFloat);
          sums[item.key()] = rank == 0 ? wire : sums[item.key()] + wire;
        }
      }
      for (auto& [fqn, sum] : sums) {
        const at::Tensor mean = (world > 1 ? sum / world : sum).to(reduce).to(torch::kFloat);
        main_gradients[fqn] = micro == 0 ? mean : main_gradients[fqn] + mean;
      }
    }
    const at::NoGradGuard no_grad;
    for (const auto& item : model->named_parameters()) {
      masters[item.key()].add_(main_gradients[item.key()], -0.2);
      item.value().copy_(masters[item.key()]);
    }
  }
  trained.parameters = masters;
  return trained;
}

Trained train_micro_batches(const Twin& twin, int world, const Options& options,
                            int micro_batches) {
  Trained trained;
  run_torch_ranks(world, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, options);
    torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.2));
    for (int step = 0; step < twin.steps; ++step) {
      for (int micro = 0; micro < micro_batches; ++micro) {
        const at::Tensor loss = twin.loss(*model, step * micro_batches + micro, mesh.rank());
        loss.backward();
        if (mesh.rank() == 0) trained.losses.push_back(loss.item<float>());
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) trained.parameters = std::move(parameters);
  });
  return trained;
}

const Twin kTwin = graph_twin(3, 9, in_a_row);

// Returns a twin whose inputs have the dtype of the parameters, because the reference has no engine
// that casts them.
Twin low_precision_twin(torch::ScalarType dtype) {
  Twin twin = kTwin;
  twin.loss = [dtype](torch::nn::Module& model, int step, int rank) {
    auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(model);
    const at::Tensor y = graph.call(values({3, 9}, 100 * step + rank).to(dtype));
    CHECK((y.scalar_type() == dtype));
    return (y.to(torch::kFloat) * values({3, 9}, 77)).square().mean();
  };
  return twin;
}

}  // namespace

TEST_CASE("bfloat16 and float16 parameters with any reduction type equal a reference by hand") {
  int combination = 0;
  for (const at::ScalarType param : {torch::kBFloat16, torch::kFloat16, torch::kFloat32}) {
    for (const at::ScalarType reduce : {torch::kFloat32, torch::kBFloat16}) {
      const Twin twin = low_precision_twin(param);
      for (const int world : {1, 2, 3}) {
        for (const int micro_batches : {1, 3}) {
          CAPTURE(c10::toString(param));
          CAPTURE(c10::toString(reduce));
          CAPTURE(world);
          CAPTURE(micro_batches);
          const Trained by_hand = train_by_hand(twin, world, param, reduce, micro_batches);
          for (const Strategy strategy : kStrategies) {
            if (!is_tried(combination++, 5)) continue;
            CAPTURE(static_cast<int>(strategy));
            check_same_bits(train_micro_batches(
                                twin, world,
                                {.mixed_precision = {.param_dtype = param, .reduce_dtype = reduce},
                                 .strategy = strategy,
                                 .debug = true},
                                micro_batches),
                            by_hand);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "inputs are cast to a unit's type, also where it has no parameters, and outputs as asked") {
  for (const bool casts : {true, false}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      std::vector<torch::ScalarType> seen;
      auto model = build_seeded(7, [&] {
        return Unit<Graph>(1, 6, [&](GraphImpl& g, const at::Tensor& x) {
          seen.push_back(x.scalar_type());
          const at::Tensor h = g.units[0](x.to(torch::kFloat));
          seen.push_back(h.scalar_type());
          return g.norm(h);
        });
      });
      Engine engine(model, mesh,
                    {.mixed_precision = {.param_dtype = torch::kBFloat16,
                                         .output_dtype = torch::kFloat32,
                                         .cast_forward_inputs = casts}});
      const at::Tensor x = values({2, 6}, 1);
      if (!casts) {
        CHECK_THROWS(model(x));  // float32 into a bfloat16 layer: an error of the user
        CHECK((seen[0] == torch::kFloat));
        return;
      }
      CHECK((model(x).scalar_type() == torch::kFloat));
      CHECK((seen == std::vector<torch::ScalarType>{torch::kBFloat16, torch::kBFloat16}));
      CHECK((x.scalar_type() == torch::kFloat));  // the caller's tensor is not changed
    });
  }
  struct BareImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x * 2; }
  };
  struct Bare : torch::nn::ModuleHolder<BareImpl> {
    using torch::nn::ModuleHolder<BareImpl>::ModuleHolder;
  };
  struct AroundImpl : torch::nn::Module {
    AroundImpl() : norm(torch::nn::LayerNormOptions({2})) {
      register_module("bare", bare);
      register_module("norm", norm);
    }
    at::Tensor forward(const at::Tensor& x) {
      return bare(x.is_floating_point() ? torch::ones({2}) : x);
    }
    Unit<Bare> bare;
    torch::nn::LayerNorm norm;
  };
  struct Around : torch::nn::ModuleHolder<AroundImpl> {
    using torch::nn::ModuleHolder<AroundImpl>::ModuleHolder;
  };
  run_torch_ranks(2, [](Mesh mesh) {
    Unit<Around> model;
    Engine engine(model, mesh, {.mixed_precision = {.param_dtype = torch::kBFloat16}});
    CHECK((model(torch::ones({2})).scalar_type() == torch::kBFloat16));
    CHECK((model(torch::tensor({1, 2})).scalar_type() == torch::kLong));
  });
}

TEST_CASE("a unit may take its inputs as they are: a time step that bfloat16 would round") {
  struct TimeImpl : torch::nn::Module {
    TimeImpl() : layer(1, 2) { register_module("layer", layer); }
    at::Tensor forward(const at::Tensor& time) {
      given = time.item<float>();
      return layer(torch::sin(time).to(layer->weight.scalar_type()));
    }
    torch::nn::Linear layer;
    float given = 0;
  };
  struct Time : torch::nn::ModuleHolder<TimeImpl> {
    using torch::nn::ModuleHolder<TimeImpl>::ModuleHolder;
  };
  constexpr float kTime = 998.3897F;
  for (const bool casts : {true, false}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      Unit<Time> model;
      const Options options{
          .mixed_precision = {.param_dtype = torch::kBFloat16, .cast_forward_inputs = !casts},
          .unit_options = [&](auto) {
            return UnitOptions{.mixed_precision = MixedPrecision{.param_dtype = torch::kBFloat16,
                                                                 .cast_forward_inputs = casts}};
          }};
      Engine engine(model, mesh, options);
      const at::Tensor output = model(torch::full({1, 1}, kTime).to(engine.device()));
      CHECK(model->given == (casts ? 1000.0F : kTime));
      CHECK((output.scalar_type() == torch::kBFloat16));
      output.sum().backward();
      CHECK(engine.measure_gradients().finite());
    });
  }
}

TEST_CASE("units may differ in type, reshard rule and prefetch, by name") {
  const auto unit_options = [](std::string_view fqn) {
    UnitOptions own;
    if (fqn == "u1") own.mixed_precision = {.param_dtype = torch::kBFloat16};
    if (fqn == "u2") own.reshard_after_forward = false;
    if (fqn == "u0") own.prefetch_units = 0;
    return own;
  };
  for (const bool built_by_scope : {false, true}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto body = [](GraphImpl& g, const at::Tensor& x) {
        const at::Tensor h = g.units[1](torch::tanh(g.units[0](x)));
        CHECK((h.scalar_type() == torch::kBFloat16));
        return g.norm(g.units[2](h.to(torch::kFloat)));
      };
      const Options options{.unit_options = unit_options};
      std::unique_ptr<Engine> engine;
      std::optional<BuildScope> building;
      if (built_by_scope) building.emplace(mesh, options);
      Unit<Graph> model(3, 6, body);
      if (built_by_scope) {
        engine = std::make_unique<Engine>(model, *building);
      } else {
        engine = std::make_unique<Engine>(model, mesh, options);
      }
      graph_loss(*model, 0, mesh.rank()).backward();
      CHECK(engine->stats().all_gathers == 4 + 2);  // u2 was not resharded
      CHECK(engine->measure_gradients().finite());
    });
  }
}

TEST_CASE("gradients are summed, or divided by a factor of choice") {
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 3}) {
      const auto gradients = [&](Options options) {
        options.strategy = strategy;
        std::map<std::string, at::Tensor> result;
        run_torch_ranks(world, [&](Mesh mesh) {
          const auto model = build_seeded(7, kTwin.make);
          Engine engine(model, mesh, options);
          graph_loss(*model, 0, mesh.rank()).backward();
          for (ShardedParameter& each : engine.sharded_parameters()) {
            if (mesh.rank() == 0) result[each.fqn] = each.local.grad().clone();
          }
        });
        return result;
      };
      const auto mean = gradients({});
      const auto sum = gradients({.gradient_reduction = GradientReduction::kSum});
      const auto factor = gradients({.gradient_divide_factor = 4.0F});
      for (const auto& [fqn, value] : sum) {
        CAPTURE(fqn);
        CHECK(bit_equal(mean.at(fqn), world > 1 ? value / world : value));
        CHECK(bit_equal(factor.at(fqn), value / 4));  // a power of two: exact
      }
    }
  }
}

TEST_CASE("gradient norms equal the plain model's and cost one all_reduce") {
  for (const int world : {1, 2, 3, 5}) {
    const auto plain = build_seeded(7, kTwin.make);
    mean_gradients(*plain, world, [&](int rank) { graph_loss(*plain, 0, rank).backward(); });
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : plain->parameters()) all.push_back(each.grad().flatten());
    const at::Tensor whole = torch::cat(all).to(torch::kDouble);
    for (const Strategy strategy : kStrategies) {
      run_torch_ranks(world, [&](Mesh mesh) {
        const auto model = build_seeded(7, kTwin.make);
        Engine engine(model, mesh, {.strategy = strategy});
        CHECK(engine.measure_gradients().norm() == 0.0);  // no gradient yet
        graph_loss(*model, 0, mesh.rank()).backward();
        const CollectiveLog collectives(mesh);
        for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
          CHECK(engine.measure_gradients(type).norm() ==
                doctest::Approx(whole.norm(type).item<double>()).epsilon(1.3e-6));
        }
        const bool shards = world > 1 && strategy != Strategy::kReplicate;
        CHECK(collectives.size() == (shards ? 3 : 0));
      });
    }
  }
}

TEST_CASE("gathered parameters can be read whole in every type, and throw before and after") {
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      const auto plain = build_seeded(7, kTwin.make);
      auto model = build_seeded(7, kTwin.make);
      Engine engine(model, mesh,
                    {.mixed_precision = {.param_dtype = torch::kBFloat16}, .debug = true});
      {
        const Gathered whole(engine);
        for (const auto& item : model->named_parameters()) {
          const at::Tensor& expected = plain->named_parameters()[item.key()];
          CHECK(bit_equal(item.value().detach(), expected.detach().to(torch::kBFloat16)));
        }
      }
      CHECK_THROWS_WITH(model->parameters()[0].sum(), doctest::Contains("is sharded"));
      const Gathered one(engine, "u1");
      CHECK(model->named_parameters()["u1.bias"].sum().isfinite().item<bool>());
      CHECK_THROWS_WITH(model->named_parameters()["u0.bias"].sum(),
                        doctest::Contains("is sharded"));
      CHECK_THROWS_WITH_AS(Gathered(engine, "u9"),
                           doctest::Contains("there is no unit 'u9'; hint: use one of '', 'u0'"),
                           InvalidArgument);
    });
  }
}

TEST_CASE("what is modified while gathered is written back, and nothing else loses precision") {
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 3}) {
      for (const WriteBack from : {WriteBack::kOwnSlice, WriteBack::kFromRankZero}) {
        CAPTURE(world);
        CAPTURE(static_cast<int>(from));
        run_torch_ranks(world, [&](Mesh mesh) {
          auto model = build_seeded(7, kTwin.make);
          Engine engine(model, mesh,
                        {.mixed_precision = {.param_dtype = torch::kBFloat16},
                         .strategy = strategy,
                         .debug = true});
          const auto before = full_parameters(engine);
          {
            const at::NoGradGuard no_grad;
            const Gathered whole(engine, from);
            const bool writes = from == WriteBack::kOwnSlice || mesh.rank() == 0;
            if (writes) model->named_parameters()["u1.weight"].fill_(3.0);
          }
          const auto after = full_parameters(engine);
          for (const auto& [fqn, value] : after) {
            CAPTURE(fqn);
            const bool changed = fqn == "u1.weight";
            CHECK(bit_equal(value, changed ? torch::full_like(value, 3.0) : before.at(fqn)));
          }
          const Gathered again(engine, "u1");  // forward must use the new copy too
          CHECK(model->named_parameters()["u1.weight"].sum().item<float>() == 243.0F);
        });
      }
    }
  }
}

TEST_CASE("replicas cannot drift apart by a write-back") {
  run_torch_ranks(3, [](Mesh mesh) {
    auto model = build_seeded(7, kTwin.make);
    Engine engine(model, mesh, {.strategy = Strategy::kReplicate});
    {
      const at::NoGradGuard no_grad;
      const Gathered whole(engine, WriteBack::kOwnSlice);
      model->named_parameters()["u1.weight"].fill_(mesh.rank() + 1.0);
    }
    CHECK(full_parameters(engine).at("u1.weight").sum().item<float>() == 81.0F);
  });
}

TEST_CASE("modifying what was gathered for reading, or gathering inside forward, is refused") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      Engine* inside = nullptr;
      auto model = build_seeded(7, [&] {
        return Unit<Graph>(2, 9, [&](GraphImpl& g, const at::Tensor& x) {
          if (inside != nullptr) {
            CHECK_THROWS_WITH_AS(Gathered(*inside, "u1"), doctest::Contains(kInsidePass.c_str()),
                                 StateError);
          }
          return in_a_row(g, x);
        });
      });
      Engine engine(model, mesh, {});
      const auto modify = [&] {
        const at::NoGradGuard no_grad;
        const Gathered whole(engine);
        model->named_parameters()["u1.bias"].zero_();
      };
      CHECK_THROWS_WITH_AS(modify(),
                           doctest::Contains("parameter 'u1.bias' was modified while gathered for "
                                             "reading; hint: pass fsdp::WriteBack"),
                           StateError);
      inside = &engine;
      graph_loss(*model, 0, mesh.rank()).backward();
    });
  }
}
