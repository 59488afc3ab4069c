// Tests the parameters that units own, and models that are refused with a reason and a fix.
#include <ATen/autocast_mode.h>

#include "engine/support/tied_models.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

TEST_CASE("tied parameters inside one unit are one parameter") { check_twin(tied_twin<Tied>()); }

TEST_CASE("parameters tied across units belong to the unit around both") {
  check_twin(tied_twin<TiedAcross>());
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<TiedAcross>(); });
    Engine engine(model, mesh);
    CHECK(state_of(engine).model.units[0]->shard->layout().parameters().size() == 1);
    CHECK(state_of(engine)
              .model.units[state_of(engine).model.find_unit("embedding")]
              ->shard->layout()
              .parameters()
              .empty());
  });
}

TEST_CASE("parameters tied across units under a BuildScope are refused with the fix") {
  const std::vector<std::string> errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        BuildScope building(mesh);
        Unit<TiedAcross> model;
        Engine engine(model, building);
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CHECK(error.find("tied to another unit") != std::string::npos);
    CHECK(error.find("build without a BuildScope") != std::string::npos);
  }
}

namespace {

// A root that holds `tensor` as its only parameter.
struct OneParameterImpl : nn::Module {
  explicit OneParameterImpl(at::Tensor tensor) {
    value = register_parameter("value", std::move(tensor), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) { return x + value.sum(); }
  at::Tensor value;
};
TORCH_MODULE(OneParameter);

std::string refusal_of(const at::Tensor& tensor) {
  try {
    Unit<OneParameter> model(tensor);
    const Engine engine(model, Mesh::single());
  } catch (const InvalidArgument& error) {
    CHECK(error.exit_code() == 78);
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, std::string_view part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("parameters that cannot be sharded are refused by name, with the reason") {
  CHECK(refusal_of(torch::ones({3})) == "accepted");
  CHECK(has(refusal_of(torch::ones({3}, torch::kDouble)),
            "parameter 'value' cannot be sharded: its type is Double"));
  CHECK(has(refusal_of(torch::ones({3}, torch::kComplexFloat)), "its type is ComplexFloat"));
  CHECK(has(refusal_of(torch::ones({3}, torch::kLong)), "its type is Long"));
  CHECK(has(refusal_of(torch::ones({3, 1}).expand({3, 4})), "elements overlap"));
  CHECK(has(refusal_of(torch::ones({3, 4}).slice(1, 0, 2)), "leave gaps in memory"));
  CHECK(has(refusal_of(torch::eye(3).to_sparse()), "sparse or quantised"));
  CHECK(has(refusal_of(torch::ones({3}).to(at::kMeta)), "it is on meta"));
  at::Tensor used = torch::ones({3}, torch::requires_grad());
  used.sum().backward();
  Unit<OneParameter> model(torch::ones({3}));
  model->value.set_requires_grad(true);
  model->value.mutable_grad() = used.grad();
  CHECK_THROWS_WITH_AS(Engine(model, Mesh::single()), doctest::Contains("has a gradient already"),
                       InvalidArgument);
}

TEST_CASE("embeddings that renormalise or make sparse gradients are refused") {
  Unit<nn::Embedding> renormalised(nn::EmbeddingOptions(4, 2).max_norm(1.0));
  CHECK_THROWS_WITH_AS(Engine(renormalised, Mesh::single()), doctest::Contains("max_norm"),
                       InvalidArgument);
  Unit<nn::Embedding> sparse(nn::EmbeddingOptions(4, 2).sparse(true));
  CHECK_THROWS_WITH_AS(Engine(sparse, Mesh::single()), doctest::Contains("use sparse(false)"),
                       InvalidArgument);
  Unit<nn::EmbeddingBag> renormalised_bag(nn::EmbeddingBagOptions(4, 2).max_norm(1.0));
  CHECK_THROWS_WITH_AS(Engine(renormalised_bag, Mesh::single()), doctest::Contains("max_norm"),
                       InvalidArgument);
  Unit<nn::EmbeddingBag> sparse_bag(nn::EmbeddingBagOptions(4, 2).sparse(true).mode(torch::kSum));
  CHECK_THROWS_WITH_AS(Engine(sparse_bag, Mesh::single()), doctest::Contains("use sparse(false)"),
                       InvalidArgument);
}

TEST_CASE("different parameters over the same memory are refused, with both names") {
  struct SharedImpl : nn::Module {
    SharedImpl() {
      const at::Tensor memory = torch::ones({8});
      register_parameter("a", memory.slice(0, 0, 5));
      register_parameter("b", memory.slice(0, 4, 8));
    }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  struct Shared : nn::ModuleHolder<SharedImpl> {
    using nn::ModuleHolder<SharedImpl>::ModuleHolder;
  };
  Unit<Shared> model;
  CHECK_THROWS_WITH_AS(Engine(model, Mesh::single()),
                       doctest::Contains("'b' cannot be sharded: it shares memory with 'a'"),
                       InvalidArgument);
}

TEST_CASE("a root that is no unit, a second engine, and impossible options are refused") {
  CHECK_THROWS_WITH_AS(Engine(nn::Linear(2, 2), Mesh::single()),
                       doctest::Contains("the root of the model is not a unit"), InvalidArgument);
  Unit<nn::Linear> model(2, 2);
  const Engine first(model, Mesh::single());
  CHECK_THROWS_WITH_AS(Engine(model, Mesh::single()),
                       doctest::Contains("this unit already belongs to another engine"),
                       StateError);
  const auto refused = [](Options options, const char* text) {
    Unit<nn::Linear> fresh(2, 2);
    CHECK_THROWS_WITH_AS(Engine(fresh, Mesh::single(), std::move(options)), doctest::Contains(text),
                         InvalidArgument);
  };
  refused({.mixed_precision = {.param_dtype = torch::kFloat64}},
          "param_dtype float64 is not supported");
  refused({.mixed_precision = {.reduce_dtype = torch::kFloat16}},
          "reduce_dtype float16 is not supported");
  refused({.mixed_precision = {.param_dtype = torch::kInt32}},
          "param_dtype int32 is not supported");
  refused({.mixed_precision = {.reduce_dtype = torch::kFloat64}},
          "reduce_dtype float64 is not supported (Options::mixed_precision)");
  refused({.mixed_precision = {.output_dtype = torch::kComplexFloat}},
          "output_dtype ComplexFloat is not supported");
  refused(
      {.unit_options =
           [](auto) {
             return UnitOptions{.mixed_precision = MixedPrecision{.reduce_dtype = torch::kFloat16}};
           }},
      "reduce_dtype float16 is not supported (mixed_precision of ");
  refused({.prefetch_units = -1}, "prefetch_units is -1");
  refused({.gradient_divide_factor = 0.0F}, "gradient_divide_factor must be positive");
  refused({.gradient_reduction = GradientReduction::kSum, .gradient_divide_factor = 2.0F},
          "a sum is not divided");
}

TEST_CASE("unit_options is asked once for each unit, the root first") {
  std::vector<std::string> asked;
  Unit<Graph> model(2, 6, in_a_row);
  const Engine engine(model, Mesh::single(), {.unit_options = [&](std::string_view fqn) {
                        asked.emplace_back(fqn);
                        return UnitOptions{};
                      }});
  CHECK((asked == std::vector<std::string>{"", "u0", "u1"}));
}

TEST_CASE("ignored parameters are left alone: whole, trainable by hand, equal to plain") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      const auto make = [] { return Unit<Graph>(2, 6, in_a_row); };
      auto plain = build_seeded(7, make);
      auto model = build_seeded(7, make);
      Engine engine(model, mesh, {.ignore = [](std::string_view fqn) { return fqn == "u1.bias"; }});
      for (const ShardedParameter& each : engine.sharded_parameters()) {
        CHECK(each.fqn != "u1.bias");
      }
      graph_loss(*model, 0, 0).backward();
      graph_loss(*plain, 0, 0).backward();
      CHECK(bit_equal(model->units[1]->bias.grad(), plain->units[1]->bias.grad()));
      CHECK(model->units[1]->bias.sum().isfinite().item<bool>());
    });
  }
}

TEST_CASE("reading a sharded parameter names its unit and the three ways to read it") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Graph>(2, 6, in_a_row); });
    Engine engine(model, mesh);
    const auto reads = {
        +[](const at::Tensor& p) { p.sum(); },
        +[](const at::Tensor& p) { p.clone(); },
        +[](const at::Tensor& p) { p.detach().zero_(); },
        +[](const at::Tensor& p) { p.data_ptr(); },
        +[](const at::Tensor& p) { p.norm(); },
        +[](const at::Tensor& p) { p.matmul(p); },
        +[](const at::Tensor& p) {
          p.detach().copy_(torch::ones({6, 6}));
        },
        +[](const at::Tensor& p) { p.to(torch::kBFloat16); },
        +[](const at::Tensor& p) { p[0][0].item<float>(); },
    };
    for (const auto& read : reads) {
      CHECK_THROWS_WITH(
          read(model->units[1]->weight),
          doctest::Contains("parameter 'u1.weight' of unit 'u1' is sharded and cannot be read "
                            "or written here; hint: call the unit through fsdp::Unit "
                            "(forward is not virtual: write list[i]->as<fsdp::Unit<Block>>(), "
                            "not as<Block>()) and its other methods through fsdp::UnitScope; read, "
                            "save or load whole values inside fsdp::Gathered"));
    }
  });
}

TEST_CASE("moving or converting the module after the engine took it throws") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Graph>(2, 6, in_a_row); });
      Engine engine(model, mesh);
      CHECK_THROWS_WITH(model->to(torch::kBFloat16), doctest::Contains("a sharded model"));
      const at::NoGradGuard no_grad;
      model->units[0]->weight.set_data(torch::ones({6, 6}));
      CHECK_THROWS_WITH_AS(model(values({2, 6}, 1)),
                           doctest::Contains("parameter 'u0.weight' got other storage"),
                           StateError);
    });
  }
}

TEST_CASE("autocast, create_graph and backward with inputs are refused; autograd::grad is not") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Graph>(2, 6, in_a_row); });
    Engine engine(model, mesh);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    CHECK_THROWS_WITH_AS(model(values({2, 6}, 1)), doctest::Contains("under autocast"), StateError);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK_THROWS_WITH_AS(
        graph_loss(*model, 0, 0).backward({}, /*retain_graph=*/true, /*create_graph=*/true),
        doctest::Contains("create_graph"), StateError);
    CHECK_THROWS_WITH_AS(
        graph_loss(*model, 0, 0).backward({}, std::nullopt, false, {{model->units[0]->weight}}),
        doctest::Contains("called with the sharded parameter 'u0.weight'"), StateError);
    engine.zero_grad();
    at::Tensor x = values({2, 6}, 1);
    x.set_requires_grad(true);
    const int64_t reduces = engine.stats().reduces;
    CHECK(torch::autograd::grad({model(x).sum()}, {x})[0].isfinite().all().item<bool>());
    CHECK(engine.stats().reduces == reduces);
    graph_loss(*model, 0, 0).backward();
    CHECK(engine.stats().reduces == reduces + 3);
  });
}

TEST_CASE("autograd::grad between micro-batches without reduction loses none of their gradients") {
  const auto norm = [](bool asks) {
    double result = 0;
    run_torch_ranks(2, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Graph>(2, 6, in_a_row); });
      Engine engine(model, mesh);
      {
        const GradSync keep(engine, false);
        graph_loss(*model, 0, mesh.rank()).backward();
      }
      if (asks) {
        at::Tensor x = values({2, 6}, 1);
        x.set_requires_grad(true);
        torch::autograd::grad({model(x).sum()}, {x});
      }
      graph_loss(*model, 1, mesh.rank()).backward();
      const double here = engine.measure_gradients().norm();
      if (mesh.rank() == 0) result = here;
    });
    return result;
  };
  CHECK(norm(true) == norm(false));
}

TEST_CASE("ranks whose models or options differ are refused on all ranks with both values") {
  const auto errors = [](auto build) {
    return errors_of_ranks(
        3,
        [&](Mesh mesh) {
          try {
            build(mesh);
          } catch (const CommError& error) {
            CHECK(error.exit_code() == 78);
            throw;
          }
        },
        torch_ranks_options());
  };
  const auto all_have = [](const std::vector<std::string>& texts,
                           const std::vector<std::string>& parts) {
    for (const std::string& text : texts) {
      for (const std::string& part : parts) CHECK(has(text, part));
    }
  };
  all_have(errors([](Mesh mesh) {
             Unit<nn::Linear> model(4, mesh.rank() == 1 ? 6 : 5);
             const Engine engine(model, mesh);
           }),
           {"parameter 'weight' [5, 4]", "parameter 'weight' [6, 4]"});
  all_have(errors([](Mesh mesh) {
             Unit<nn::Linear> model(4, 5);
             if (mesh.rank() == 2) model->bias.set_requires_grad(false);
             const Engine engine(model, mesh);
           }),
           {"parameter 'bias'", "frozen"});
  all_have(errors([](Mesh mesh) {
             Unit<nn::Linear> model(4, 5);
             const Engine engine(model, mesh, {.prefetch_units = mesh.rank() == 0 ? 2 : 1});
           }),
           {"prefetch_units 1", "prefetch_units 2"});
  all_have(errors([](Mesh mesh) {
             Unit<nn::Linear> model(4, 5);
             const Engine engine(
                 model, mesh, {.unit_options = [&](std::string_view) {
                   return UnitOptions{
                       .mixed_precision = MixedPrecision{
                           .param_dtype = mesh.rank() == 0 ? torch::kBFloat16 : torch::kFloat32}};
                 }});
           }),
           {"param_dtype bfloat16", "param_dtype float32"});
}
