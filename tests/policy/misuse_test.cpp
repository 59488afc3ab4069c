// Tests the errors for things that a model with units by policy must not do.
#include <ATen/autocast_mode.h>
#include <fsdp/error.h>
#include <fsdp/optim.h>
#include <fsdp/recompute.h>

#include <sstream>
#include <thread>

#include "policy/support/policy_twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// A sequence of linear layers, its engine, and its loss.
struct Trainee {
  explicit Trainee(const Mesh& mesh, Options options = {})
      : layers(build_seeded(5,
                            [] {
                              torch::nn::Sequential made;
                              for (int i = 0; i < 3; ++i) made->push_back(torch::nn::Linear(4, 4));
                              return made;
                            })),
        engine(layers, mesh, with_units(std::move(options))) {}
  static Options with_units(Options options) {
    if (!options.units.is_set()) options.units = by_type<torch::nn::Linear>();
    return options;
  }
  torch::nn::LinearImpl& layer(size_t i) { return *layers[i]->as<torch::nn::Linear>(); }
  at::Tensor loss() {
    return engine.forward([&](const at::Tensor& x) { return layers->forward(x).square().sum(); },
                          values({2, 4}, 9).to(engine.device()));
  }
  at::Tensor gradient(size_t number) { return engine.sharded_parameters()[number].local.grad(); }

  torch::nn::Sequential layers;
  Engine engine;
};

void check_refused(const std::function<void()>& call, const std::string& text) {
  CHECK_THROWS_WITH_AS(call(), doctest::Contains(text.c_str()), StateError);
}

template <class Body>
void on_two_ranks(Body body) {
  run_torch_ranks(2, [&](Mesh mesh) {
    Trainee trainee(mesh);
    body(trainee);
    // The refusal must have had no effect.
    trainee.engine.zero_grad();
    trainee.loss().backward();
    CHECK(trainee.gradient(0).defined());
  });
}

}  // namespace

TEST_CASE("parameters are neither read nor written outside a forward") {
  on_two_ranks([](Trainee& trainee) {
    at::Tensor& weight = trainee.layer(1).weight;
    check_refused([&] { weight.sum(); },
                  "'aten::sum' reads parameters of unit '1' outside a forward");
    check_refused(
        [&] {
          trainee.layers->forward(torch::ones({2, 4}));
        },
        "reads parameters of unit '0' outside a forward");
    check_refused([&] { trainee.layers->to(torch::kDouble); }, "'aten::to' reads parameters");
    check_refused([&] { trainee.layers->clone(); }, "reads parameters of unit '0'");
    check_refused(
        [&] {
          const at::NoGradGuard no_grad;
          weight.zero_();
        },
        "'aten::zero_' writes parameters of unit '1' outside a forward");
    check_refused(
        [&] {
          weight.set_data(torch::ones({4, 4}));
        },
        "reads parameters of unit '1' outside a forward");
    check_refused([&] { std::ostringstream() << weight; }, "outside a forward");
    // This view outlives its forward.
    at::Tensor view;
    trainee.engine.forward([&] {
      view = weight.detach();
      return torch::ones({1});
    });
    check_refused([&] { view.sum(); }, "outside a forward");
    CHECK_THROWS_WITH_AS(view.const_data_ptr<float>(), doctest::Contains("is sharded"), c10::Error);
    // An operator that reads no values is allowed.
    CHECK(weight.sizes() == torch::IntArrayRef({4, 4}));
    weight.requires_grad_(true);
  });
}

TEST_CASE("an operator on units of two meshes is refused; on those of two engines it is not") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee one(mesh), of_same_mesh(mesh), of_other(Mesh::single());
    const auto product_with = [&](Trainee& other) {
      return one.engine.forward([&] {
        return other.engine.forward(
            [&] { return at::mm(one.layer(0).weight, other.layer(1).weight).sum(); });
      });
    };
    check_refused([&] { product_with(of_other); },
                  "'aten::mm' is given parameters of engines on two meshes: unit '0' and unit '1'");
    if (!is_simulated_gpu()) {  // the other model is on the host
      const Gathered whole(one.engine), other(of_other.engine);
      CHECK(bit_equal(one.layer(0).weight.detach(), of_other.layer(0).weight.detach()));
      CHECK(at::equal(one.layer(1).weight, of_other.layer(1).weight));
    }
    product_with(of_same_mesh).backward();
    Trainee plain(Mesh::single());
    {
      const Gathered whole(plain.engine);
      at::Tensor weight = plain.layer(0).weight.detach().clone().requires_grad_(true);
      at::mm(weight, plain.layer(1).weight.detach()).sum().backward();
      for (const ShardedParameter& parameter : one.engine.sharded_parameters()) {
        if (parameter.fqn != "0.weight" || parameter.local.numel() == 0) continue;
        CHECK(bit_equal(weight.grad().flatten().narrow(0, parameter.begin, parameter.local.numel()),
                        parameter.local.grad().cpu()));
      }
    }
    for (Trainee* each : {&one, &of_same_mesh}) {
      each->engine.zero_grad();
      each->loss().backward();
      CHECK(each->gradient(0).defined());
    }
  });
}

TEST_CASE("a parameter that is written inside a forward or backward is refused") {
  on_two_ranks([](Trainee& trainee) {
    check_refused(
        [&] {
          trainee.engine.forward([&] {
            const at::NoGradGuard no_grad;
            return trainee.layer(1).weight.mul_(2).sum();
          });
        },
        "'aten::mul_' writes a parameter inside a forward (unit '1')");
    at::Tensor loss = trainee.loss();
    loss.register_hook([&](const at::Tensor&) {
      const at::NoGradGuard no_grad;
      trainee.layer(0).weight.mul_(2);
    });
    check_refused([&] { loss.backward(); }, "'aten::mul_' writes a parameter inside a backward");
  });
}

TEST_CASE("a hook that reads a unit that backward has not come to is refused") {
  on_two_ranks([](Trainee& trainee) {
    at::Tensor loss = trainee.loss();
    loss.register_hook([&](const at::Tensor&) {
      const at::NoGradGuard no_grad;
      trainee.layer(0).weight.sum();
    });
    check_refused([&] { loss.backward(); },
                  "'aten::sum' reads parameters of unit '0' before backward reaches the unit");
  });
}

TEST_CASE("raw memory of a unit that is not touched says what to do") {
  on_two_ranks([](Trainee& trainee) {
    CHECK_THROWS_WITH_AS(trainee.engine.forward([&] {
      static_cast<void>(trainee.layer(2).weight.const_data_ptr<float>());
      return torch::ones({1});
    }),
                         doctest::Contains("where LibTorch's operators gather the parameters"),
                         c10::Error);
  });
}

TEST_CASE("a forward on another thread is refused") {
  on_two_ranks([](Trainee& trainee) {
    check_refused(
        [&] {
          trainee.engine.forward([&] {
            std::exception_ptr thrown;
            std::thread([&] {
              try {
                trainee.layer(0).forward(torch::ones({2, 4}));
              } catch (...) {
                thrown = std::current_exception();
              }
            }).join();
            if (thrown) std::rethrow_exception(thrown);
            return torch::ones({1});
          });
        },
        "on another thread than the forward");
  });
}

TEST_CASE("LibTorch's own errors name operator and unit, and types that do not fit what to do") {
  on_two_ranks([](Trainee& trainee) {
    CHECK_THROWS_WITH_AS(trainee.engine.forward([&] {
      return trainee.layers->forward(torch::ones({2, 5}));
    }),
                         doctest::Contains("on parameters of unit '0'"), c10::Error);
  });
  run_torch_ranks(1, [](Mesh mesh) {
    Trainee trainee(mesh, {.mixed_precision = {.param_dtype = torch::kBFloat16}});
    CHECK_THROWS_WITH_AS(
        trainee.engine.forward([&] {
          return trainee.layers->forward(torch::ones({2, 4}));
        }),
        doctest::Contains(
            "which computes in bfloat16; hint: pass inputs as arguments of Engine::forward"),
        c10::Error);
    const bool is_cast = trainee.loss().scalar_type() == at::kBFloat16;
    CHECK(is_cast);
  });
}

TEST_CASE("autocast, create_graph and autograd::grad of parameters are refused") {
  on_two_ranks([](Trainee& trainee) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    check_refused([&] { trainee.loss(); }, "called under autocast");
    at::autocast::set_autocast_enabled(at::kCPU, false);
    // Autocast is switched on inside the forward, before the first unit or between two units.
    for (const size_t layers_before : {0, 1}) {
      const auto forward = [&](at::Tensor x) {
        for (size_t i = 0; i < 3; ++i) {
          if (i == layers_before) at::autocast::set_autocast_enabled(at::kCPU, true);
          x = trainee.layer(i).forward(x);
        }
        return x.sum();
      };
      check_refused(
          [&] {
            trainee.engine.forward(forward, torch::ones({2, 4}));
          },
          "a sharded unit was called under autocast");
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
    check_refused(
        [&] { trainee.loss().backward({}, /*retain_graph=*/true, /*create_graph=*/true); },
        "create_graph");
    check_refused(
        [&] { torch::autograd::grad({trainee.loss()}, {trainee.layer(0).weight}); },
        "autograd::grad with respect to the sharded parameter '0.weight' is not supported");
  });
}

TEST_CASE("a buffer whose type does not fit is named where its unit is one by policy") {
  struct ScaledImpl : torch::nn::Module {
    ScaledImpl() : linear(4, 4) {
      register_module("linear", linear);
      scale = register_buffer("scale", torch::ones({4}));
    }
    at::Tensor forward(const at::Tensor& x) { return linear(x * scale.to(x.device())); }
    torch::nn::Linear linear;
    at::Tensor scale;
  };
  run_torch_ranks(2, [](Mesh mesh) {
    torch::nn::Sequential layers(
        torch::nn::ModuleHolder<ScaledImpl>(std::make_shared<ScaledImpl>()));
    Engine engine(
        layers, mesh,
        {.units = by_type<ScaledImpl>(), .mixed_precision = {.param_dtype = torch::kBFloat16}});
    CHECK_THROWS_WITH_AS(engine.forward([&](const at::Tensor& x) { return layers->forward(x); },
                                        torch::ones({2, 4}).to(engine.device())),
                         doctest::Contains("buffer '0.scale' is float32, but the unit computes in "
                                           "bfloat16 (LibTorch: "),
                         InvalidArgument);
  });
}

TEST_CASE("policies that choose nothing, or what cannot be, are refused by name") {
  run_torch_ranks(1, [](Mesh mesh) {
    const auto refused = [&](Options options, const std::string& text) {
      CHECK_THROWS_WITH_AS(Trainee(mesh, std::move(options)), doctest::Contains(text.c_str()),
                           InvalidArgument);
    };
    refused({.units = by_type<torch::nn::LSTM>()}, "by_type chooses no module");
    refused({.units = each_child_of("layer") | by_name([](auto) { return false; })},
            "each_child_of(\"layer\") | by_name chooses no module");
    refused({.recompute = 1}, "unit '0' was chosen by Options::units and cannot be recomputed");
    refused({.unit_options =
                 [](std::string_view fqn) {
                   UnitOptions own;
                   if (fqn == "1") own.mixed_precision = {.param_dtype = torch::kBFloat16};
                   return own;
                 }},
            "unit '1' computes in bfloat16, but the unit around it computes in unset");
    refused(
        {.mixed_precision = {.cast_forward_inputs = false},
         .unit_options =
             [](auto) {
               return UnitOptions{.mixed_precision = MixedPrecision{.cast_forward_inputs = true}};
             }},
        "unit '0' was chosen by Options::units and cannot cast its inputs");
    refused({.unit_options =
                 [](std::string_view fqn) {
                   UnitOptions own;
                   if (fqn == "1") own.mixed_precision = {.output_dtype = torch::kFloat32};
                   return own;
                 }},
            "unit '1' was chosen by Options::units and cannot cast its outputs");
    torch::nn::Sequential plain(torch::nn::Linear(4, 4));
    CHECK_THROWS_WITH_AS(Engine(plain, mesh), doctest::Contains("Options::units"), InvalidArgument);
    const Options options{.units = by_type<torch::nn::Linear>()};
    {
      const Engine first(plain, mesh, options);
      CHECK_THROWS_WITH_AS(Engine(plain, mesh, options),
                           doctest::Contains("this unit already belongs to another engine"),
                           StateError);
    }
    CHECK_THROWS_WITH_AS(Engine(plain, mesh, options),
                         doctest::Contains("the engine of this model was destroyed"), StateError);
    CHECK_THROWS_WITH_AS(plain->forward(torch::ones({1, 4})),
                         doctest::Contains("the engine was destroyed"), c10::Error);
  });
}

TEST_CASE("a model that stays one unit is warned of") {
  std::vector<std::string> warnings;
  RunRanksOptions run = torch_ranks_options();
  run.mesh.on_event = [&](const MeshEvent& event) { warnings.push_back(event.text.what); };
  run_ranks(
      1,
      [](Mesh mesh) {
        // The children have no parameters.
        torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::ReLU());
        const Engine engine(model, mesh, {.units = by_type<torch::nn::ReLU>()});
        torch::nn::Sequential together(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
        const Engine another(together, mesh, {.units = each_child_of("", 4)});
      },
      run);
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0] == "by_type chooses no module with parameters: the model is one unit");
  CHECK(warnings[1] ==
        "each_child_of(\"\", 4) puts all parameters into unit '0-1': the model is one unit");
}

TEST_CASE("zero_grad of the model is that of the engine; of a part of a unit it is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh);
    trainee.loss().backward();
    const double once = trainee.engine.measure_gradients().norm();
    trainee.loss().backward();
    CHECK(trainee.engine.measure_gradients().norm() == doctest::Approx(2 * once));
    trainee.layers->zero_grad();
    trainee.loss().backward();
    CHECK(trainee.engine.measure_gradients().norm() == once);
    const at::Tensor loss = trainee.loss();
    trainee.layers->zero_grad();  // between forward and backward, as for a GAN's generator
    loss.backward();
    CHECK(trainee.engine.measure_gradients().norm() == once);
    trainee.layers->zero_grad();  // the batch is skipped
    CHECK(trainee.engine.measure_gradients().norm() == 0);
    trainee.loss().backward();
    trainee.layers->zero_grad();
    SGD optimizer(trainee.engine, {.lr = 1.0, .skip_nonfinite = false});
    const at::Tensor before = trainee.engine.sharded_parameters()[0].local.clone();
    optimizer.step();
    CHECK(at::equal(before, trainee.engine.sharded_parameters()[0].local));
    trainee.loss().backward();
    trainee.layer(1).weight.mutable_grad() = at::Tensor();
    check_refused([&] { trainee.loss(); },
                  "only some gradients of the unit were cleared (unit '1')");
  });
}

TEST_CASE("a LibTorch step with gradients that zero_grad of the model has taken away is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh);
    torch::optim::SGD optimizer(trainee.engine.parameters(), 0.1);
    trainee.loss().backward();
    trainee.layers->zero_grad();
    check_refused(
        [&] { optimizer.step(); },
        "cannot step: the model's zero_grad removed the gradients from the parameters (unit '0')");
    optimizer.zero_grad();
    trainee.loss().backward();
    optimizer.step();
  });
}
