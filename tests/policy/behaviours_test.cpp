// Tests that units by policy behave as fsdp::Unit does.
#include <fsdp/error.h>
#include <fsdp/recompute.h>
#include <fsdp/trace.h>
#include <torch/library.h>

#include <sstream>

#include "policy/support/linears.h"
#include "policy/support/policy_twin.h"
#include "simulator/guarded_memory.h"
#include "support/mismatch_text.h"
#include "support/scratch_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor result = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  const float* by = weight.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    result.mutable_data_ptr<float>()[i] = from[i] * by[i % weight.numel()];
  }
  return result;
}

at::Tensor whole_row(torch::nn::Sequential& layers, const at::Tensor& x, int /*rank*/) {
  return in_a_row(layers, x);
}

}  // namespace

TORCH_LIBRARY(fsdp_policy_test, m) {
  m.def("scaled_rows(Tensor x, Tensor weight) -> Tensor");
  m.impl("scaled_rows", c10::DispatchKey::CompositeExplicitAutograd, &scaled_rows);
}

TEST_CASE("custom Functions that read a unit's parameters are trained to the plain bits") {
  for (const int world : {1, 2, 3}) check_as_plain(custom, world);
}

TEST_CASE("recomputed forwards are trained to the plain bits, custom Functions inside as well") {
  check_as_plain([](torch::nn::Sequential& layers, const at::Tensor& x) {
    return fsdp::recompute([&](const at::Tensor& h) { return in_a_row(layers, h); }, x);
  });
  check_as_plain([](torch::nn::Sequential& layers, const at::Tensor& x) {
    const auto two = [&](const at::Tensor& h) {
      return layer(layers, 2).forward(
          fsdp::recompute([&](const at::Tensor& g) { return layer(layers, 1).forward(g); }, h));
    };
    return fsdp::recompute(two, layer(layers, 0).forward(x));
  });
  check_as_plain([](torch::nn::Sequential& layers, const at::Tensor& x) {
    return fsdp::recompute([&](const at::Tensor& h) { return custom(layers, h); }, x);
  });
}

TEST_CASE("ranks whose custom Functions differ are told, on all ranks") {
  const std::vector<std::string> errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        torch::nn::Sequential layers = rows_of_linears();
        Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>()});
        engine
            .forward(
                [&](const at::Tensor& x) {
                  at::Tensor h = TimesWeight::apply(x, layer(layers, 0).weight);
                  if (mesh.rank() == 1) h = TimesWeight::apply(h, layer(layers, 1).weight);
                  return TimesWeight::apply(h, layer(layers, 2).weight).sum();
                },
                input_of(0))
            .backward();
        engine.measure_gradients();
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CHECK(error.find(kDisagree) != std::string::npos);
    CHECK(error.find("'1'") != std::string::npos);
  }
}

TEST_CASE("operators of others read raw memory where they are given the parameter") {
  const auto scale = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("fsdp_policy_test::scaled_rows", "")
                         .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  run_torch_ranks(2, [&](Mesh mesh) {
    if (is_simulated_gpu()) return;  // this test reads values on the host
    torch::nn::Sequential plain = rows_of_linears(), layers = rows_of_linears();
    Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>()});
    const at::NoGradGuard no_grad;
    const at::Tensor x = input_of(0);
    const AsDeviceWork reads;
    const at::Tensor got = engine.forward([&] { return scale.call(x, layer(layers, 1).bias); });
    CHECK(bit_equal(got, scale.call(x, layer(plain, 1).bias)));
  });
}

TEST_CASE("evaluation leaves nothing gathered, and nothing behind") {
  run_torch_ranks(2, [](Mesh mesh) {
    torch::nn::Sequential plain = rows_of_linears(), layers = rows_of_linears();
    Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>()});
    for (int i = 0; i < 3; ++i) {
      const at::NoGradGuard no_grad;
      const at::Tensor got = engine.forward([&](const at::Tensor& x) { return layers->forward(x); },
                                            input_of(i).to(engine.device()));
      CHECK(bit_equal(got.cpu(), plain->forward(input_of(i))));
      CHECK(engine.stats().memory.in_use[MemoryCategory::kParameterSlots] == 0);
    }
  });
}

TEST_CASE("frozen layers, micro-batches and passes without reduction give the plain bits") {
  const auto freeze = [](torch::nn::Sequential& layers) {
    layer(layers, 1).weight.set_requires_grad(false);
    layer(layers, 1).bias.set_requires_grad(false);
  };
  torch::nn::Sequential plain = rows_of_linears();
  freeze(plain);
  mean_gradients(*plain, 2, [&](int rank) {
    for (int micro = 0; micro < 2; ++micro) {
      plain->forward(input_of(rank + 4 * micro)).square().sum().backward();
    }
  });
  run_torch_ranks(2, [&](Mesh mesh) {
    torch::nn::Sequential layers = rows_of_linears();
    freeze(layers);
    Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>()});
    for (int micro = 0; micro < 2; ++micro) {
      const GradSync sync(engine, /*reduce=*/micro == 1);
      engine
          .forward([&](const at::Tensor& x) { return layers->forward(x).square().sum(); },
                   input_of(mesh.rank() + 4 * micro).to(engine.device()))
          .backward();
    }
    check_gradients(engine, plain);
  });
}

TEST_CASE("a forward that throws is forgotten, and the next is right") {
  const torch::nn::Sequential plain = plain_after(whole_row, 2);
  run_torch_ranks(2, [&](Mesh mesh) {
    torch::nn::Sequential layers = rows_of_linears();
    Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>(), .debug = true});
    const auto throws_after = [&](const at::Tensor& x) -> at::Tensor {
      layer(layers, 1).forward(layer(layers, 0).forward(x));
      throw std::runtime_error("the model has had enough");
    };
    const at::Tensor x = input_of(mesh.rank()).to(engine.device());
    CHECK_THROWS_WITH(engine.forward(throws_after, x), "the model has had enough");
    CHECK(engine.stats().memory.in_use[MemoryCategory::kParameterSlots] == 0);
    engine.forward([&](const at::Tensor& h) { return layers->forward(h).square().sum(); }, x)
        .backward();
    check_gradients(engine, plain);
  });
}

TEST_CASE("Unit and policy in one model, and two engines, give the plain bits") {
  struct MixedImpl : torch::nn::Module {
    MixedImpl() : explicit_one(4, 4), plain_one(4, 4), last(4, 4) {
      register_module("explicit_one", explicit_one);
      register_module("plain_one", plain_one);
      register_module("last", last);
    }
    at::Tensor forward(const at::Tensor& x) {
      return last(explicit_one(plain_one(explicit_one(x))));
    }
    Unit<torch::nn::Linear> explicit_one;
    torch::nn::Linear plain_one, last;
  };
  const auto make = [] { return build_seeded(8, [] { return std::make_shared<MixedImpl>(); }); };
  const auto plain = make();
  mean_gradients(*plain, 2, [&](int rank) { plain->forward(input_of(rank)).sum().backward(); });
  run_torch_ranks(2, [&](Mesh mesh) {
    const auto one = make(), two = make();
    const Options options{.units = by_name([](auto fqn) { return fqn == "plain_one"; })};
    Engine first(one, mesh, options), second(two, mesh, options);
    for (int step = 0; step < 2; ++step) {
      for (Engine* engine : {&first, &second}) {
        MixedImpl& model = engine == &first ? *one : *two;
        engine->zero_grad();
        engine
            ->forward([&](const at::Tensor& x) { return model.forward(x).sum(); },
                      input_of(mesh.rank()).to(engine->device()))
            .backward();
        for (const ShardedParameter& parameter : engine->sharded_parameters()) {
          if (parameter.local.numel() == 0) continue;
          const at::Tensor whole = plain->named_parameters()[parameter.fqn].grad().flatten();
          CHECK(bit_equal(whole.narrow(0, parameter.begin, parameter.local.numel()),
                          parameter.local.grad().cpu()));
        }
      }
    }
  });
}

TEST_CASE("inside Gathered a plain model is read, saved and loaded as it is") {
  std::stringstream file;
  torch::nn::Sequential other = build_seeded(77, [] {
    torch::nn::Sequential made;
    for (int i = 0; i < 3; ++i) made->push_back(torch::nn::Linear(4, 4));
    return made;
  });
  torch::save(other, file);
  const std::string bytes = file.str();
  run_torch_ranks(2, [&](Mesh mesh) {
    if (is_simulated_gpu()) return;  // its values are on the device
    torch::nn::Sequential layers = rows_of_linears();
    Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>()});
    {
      const Gathered whole(engine);
      torch::nn::Sequential plain = rows_of_linears();
      CHECK(bit_equal(layer(layers, 1).weight.detach().clone(), layer(plain, 1).weight.detach()));
      if (mesh.rank() == 0) {
        std::stringstream saved;
        const AsDeviceWork reads;
        torch::save(layers, saved);
        torch::nn::Sequential again = rows_of_linears();
        {
          const at::NoGradGuard no_grad;
          layer(again, 1).weight.zero_();
        }
        torch::load(again, saved);
        CHECK(bit_equal(layer(again, 1).weight.detach(), layer(plain, 1).weight.detach()));
      }
    }
    {
      const Gathered whole(engine, WriteBack::kFromRankZero);
      std::stringstream in(bytes);
      torch::load(layers, in);
    }
    for (const auto& [fqn, value] : full_parameters(engine)) {
      CHECK(bit_equal(value, other->named_parameters()[fqn].detach()));
    }
    {
      const Gathered whole(engine, WriteBack::kOwnSlice);
      const at::NoGradGuard no_grad;
      layer(layers, 0).bias.fill_(3);
    }
    CHECK(full_parameters(engine)["0.bias"].eq(3).all().item<bool>());
  });
}

TEST_CASE("a model put together under a BuildScope holds its shards and a layer, and no more") {
  const torch::nn::Sequential plain = plain_after(whole_row, 2);
  run_torch_ranks(2, [&](Mesh mesh) {
    BuildScope building(mesh, {.units = by_type<torch::nn::Linear>(), .seed = 5});
    torch::nn::Sequential layers;
    for (int i = 0; i < 3; ++i) layers->push_back(building.shard(torch::nn::Linear(4, 4)));
    CHECK_THROWS_WITH_AS(layer(layers, 0).weight.sum(), doctest::Contains("was sharded when"),
                         c10::Error);
    Engine engine(layers, building);
    engine
        .forward([&](const at::Tensor& x) { return layers->forward(x).square().sum(); },
                 input_of(mesh.rank()).to(engine.device()))
        .backward();
    check_gradients(engine, plain);
  });
}

TEST_CASE("memory is what the plan says, to the byte, from the second step on") {
  for (const PlainModel& model : plain_models()) {
    CAPTURE(model.name);
    for (const int prefetch : {0, 1, 2}) {
      if (!is_tried(prefetch, 3)) continue;
      CAPTURE(prefetch);
      run_torch_ranks(2, [&](Mesh mesh) {
        const auto module = build_seeded(3, model.make);
        Engine engine(module, mesh, {.units = model.units, .prefetch_units = prefetch});
        for (int step = 0; step < 3; ++step) {
          engine.reset_peak_memory();
          Tensors inputs = model.inputs(step, mesh.rank());
          for (at::Tensor& input : inputs) input = input.to(engine.device());
          engine.forward([&](const Tensors& given) { return model.loss(*module, given); }, inputs)
              .backward();
          const MemoryStats used = engine.stats().memory;
          if (step > 0) {
            CHECK(used.peak.total() == engine.memory_plan().peak_bytes());
            CHECK(used.held_bytes == engine.memory_plan().held_bytes);
          }
          engine.zero_grad();
        }
      });
    }
  }
}

TEST_CASE("a trace has the forwards of units by policy") {
  run_torch_ranks(1, [](Mesh mesh) {
    torch::nn::Sequential layers = rows_of_linears();
    Engine engine(layers, mesh, {.units = by_type<torch::nn::Linear>()});
    Trace trace(engine);
    engine
        .forward([&](const at::Tensor& x) { return layers->forward(x).sum(); },
                 input_of(0).to(engine.device()))
        .backward();
    const ScratchFolder folder;
    trace.write(folder / "trace.json");
    const std::string text = read_whole(folder / "trace.json");
    int forwards = 0;
    const std::string forward = "\"cat\":\"forward\"";
    for (size_t at = text.find(forward); at != std::string::npos; at = text.find(forward, at + 1)) {
      ++forwards;
    }
    CHECK(forwards == 4);  // those of the root and of its units
  });
}
