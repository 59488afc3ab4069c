// Tests units of several layers, which each_child_of makes if it gets a number.
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/recompute.h>

#include "policy/support/linears.h"
#include "support/mismatch_text.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kLayers = 5;

at::Tensor recomputed(torch::nn::Sequential& layers, const at::Tensor& x, size_t i) {
  return fsdp::recompute([&layers, i](const at::Tensor& h) { return layer(layers, i).forward(h); },
                         x);
}

// Calls the layers in this order. If `recomputes`, each layer is recomputed.
at::Tensor in_order(torch::nn::Sequential& layers, at::Tensor x, const std::vector<size_t>& order,
                    bool recomputes = false) {
  for (const size_t i : order) {
    x = recomputes ? recomputed(layers, x, i) : layer(layers, i).forward(x);
  }
  return x;
}

// Returns a forward that omits layer i on rank i % world.
RankForward with_dropped_layers(int world, bool recomputes) {
  return [=](torch::nn::Sequential& layers, const at::Tensor& x, int rank) {
    std::vector<size_t> kept;
    for (size_t i = 0; i < kLayers; ++i) {
      if (static_cast<int>(i) % world != rank) kept.push_back(i);
    }
    return in_order(layers, x, kept, recomputes).tanh();
  };
}

struct Counts {
  int64_t gathers = 0, reduces = 0;
  bool operator==(const Counts&) const = default;
};

Counts counts_of_step(const Forward& forward, int layers_of_unit) {
  Counts counts;
  run_torch_ranks(2, [&](Mesh mesh) {
    torch::nn::Sequential layers = rows_of_linears(kLayers);
    Engine engine(layers, mesh, {.units = each_child_of("", layers_of_unit)});
    engine
        .forward([&](const at::Tensor& x) { return forward(layers, x).square().sum(); },
                 input_of(mesh.rank()).to(engine.device()))
        .backward();
    if (mesh.rank() == 0) counts = {engine.stats().all_gathers, engine.stats().reduces};
  });
  return counts;
}

struct PairImpl : torch::nn::Module {
  PairImpl() : first(4, 4), second(4, 4) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).tanh()); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Pair);

// Checks the model that `make` returns, on two ranks.
void check_model(const std::function<torch::nn::Sequential()>& make, const UnitPolicy& units) {
  torch::nn::Sequential plain = build_seeded(6, make);
  mean_gradients(*plain, 2,
                 [&](int rank) { plain->forward(input_of(rank)).square().sum().backward(); });
  run_torch_ranks(2, [&](Mesh mesh) {
    torch::nn::Sequential layers = build_seeded(6, make);
    Engine engine(layers, mesh, {.units = units, .debug = true});
    for (int step = 0; step < 2; ++step) {
      engine.zero_grad();
      engine
          .forward([&](const at::Tensor& x) { return layers->forward(x).square().sum(); },
                   input_of(mesh.rank()).to(engine.device()))
          .backward();
      check_gradients(engine, plain);
    }
  });
}

// A layer that uses the weight of another layer.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight).tanh(); }
  at::Tensor weight;
};
TORCH_MODULE(Tied);

// The model is made in the rank's thread, so its memory is that of the rank's device.
std::string error_of_engine(const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                            Options options) {
  std::string text = "no error";
  run_torch_ranks(1, [&](Mesh mesh) {
    try {
      const Engine engine(make(), mesh, options);
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
  });
  return text;
}

void check_says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("whatever a forward does with the layers of a unit, it gives the plain bits") {
  const std::vector<std::pair<std::string, Forward>> forwards{
      {"in a row", in_a_row},
      {"backwards",
       [](auto& layers, const auto& x) {
         return in_order(layers, x, {4, 3, 2, 1, 0});
       }},
      {"twice and in turns",
       [](auto& layers, const auto& x) {
         return in_order(layers, x, {0, 1, 0, 2, 1, 3, 3, 4});
       }},
      {"with code between them",
       [](auto& layers, const auto& x) {
         const at::Tensor h = in_order(layers, x, {0, 1}).tanh();
         return in_order(layers, (h * h.detach().mean()).relu(), {2, 3, 4}) + h;
       }},
      {"custom Functions", custom},
      {"each recomputed",
       [](auto& layers, const auto& x) {
         return in_order(layers, x, {0, 1, 2, 3, 4}, true);
       }},
      {"some recomputed",
       [](auto& layers, const auto& x) {
         const at::Tensor h = layer(layers, 1).forward(recomputed(layers, x, 0));
         return in_order(layers, recomputed(layers, recomputed(layers, h, 2), 3), {4});
       }},
      {"recomputed across units",
       [](auto& layers, const auto& x) {
         const at::Tensor h = fsdp::recompute(
             [&](const at::Tensor& g) {
               return in_order(layers, g, {0, 1, 2});
             },
             x);
         return fsdp::recompute(
             [&](const at::Tensor& g) {
               return in_order(layers, g, {3, 4});
             },
             h);
       }},
  };
  int number = 0;
  for (const auto& [name, forward] : forwards) {
    CAPTURE(name);
    for (const int layers_of_unit : {1, 2, 3, 4, 5, 6}) {
      CAPTURE(layers_of_unit);
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(number++, 3)) continue;
        CAPTURE(prefetch);
        const int world = 1 + number % 3;
        check_as_plain(
            forward, world,
            {.units = each_child_of("", layers_of_unit),
             .prefetch_units = prefetch,
             .strategy = kStrategies[static_cast<size_t>(number) % std::size(kStrategies)]},
            kLayers);
      }
    }
  }
}

TEST_CASE("ranks may leave out layers of a unit, recomputed ones as well, as long as one is left") {
  for (const bool recomputes : {false, true}) {
    CAPTURE(recomputes);
    for (const int world : {2, 3}) {
      CAPTURE(world);
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(prefetch, 3)) continue;
        CAPTURE(prefetch);
        for (const int layers_of_unit : {world, kLayers}) {
          CAPTURE(layers_of_unit);
          if (kLayers % layers_of_unit == 1) continue;  // the last unit has only one layer
          check_ranks_as_plain(
              with_dropped_layers(world, recomputes), world,
              {.units = each_child_of("", layers_of_unit), .prefetch_units = prefetch}, kLayers);
        }
      }
    }
  }
}

TEST_CASE("a rank that leaves out a whole unit is told, on all ranks") {
  const std::vector<std::string> errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        torch::nn::Sequential layers = rows_of_linears(kLayers);
        Engine engine(layers, mesh, {.units = each_child_of("", 2)});
        const auto order =
            mesh.rank() == 1 ? std::vector<size_t>{0, 1, 4} : std::vector<size_t>{0, 1, 3, 4};
        engine
            .forward([&](const at::Tensor& x) { return in_order(layers, x, order).sum(); },
                     input_of(0).to(engine.device()))
            .backward();
        engine.measure_gradients();
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    check_says(error, kDisagree);
    check_says(error, "'2-3'");
  }
}

TEST_CASE(
    "a unit of several layers is gathered twice and reduced once, recomputed by layers or not") {
  for (const int layers_of_unit : {2, 3, 5}) {
    CAPTURE(layers_of_unit);
    const int units = (kLayers + layers_of_unit - 1) / layers_of_unit;
    const Counts expected{.gathers = 2 * units, .reduces = units};
    const auto counts = [&](const Forward& forward) {
      return counts_of_step(forward, layers_of_unit);
    };
    CHECK(counts(in_a_row) == expected);
    CHECK(counts([](auto& layers, const auto& x) {
            return in_order(layers, x, {0, 1, 2, 3, 4}, /*recomputes=*/true);
          }) == expected);
  }
}

TEST_CASE("layers tied within a unit and across units, and one that is registered twice") {
  for (const size_t source : {0, 2}) {
    CAPTURE(source);
    for (const bool repeats_first : {false, true}) {
      CAPTURE(repeats_first);
      check_model(
          [&] {
            torch::nn::Sequential layers;
            for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(4, 4));
            layers->push_back(Tied(layer(layers, source).weight));
            if (repeats_first) {
              layers->push_back(
                  std::dynamic_pointer_cast<torch::nn::LinearImpl>(layers->children()[0]));
            }
            return layers;
          },
          each_child_of("", 2));
    }
  }
}

TEST_CASE("units by other policies are inside and beside units of several layers") {
  check_model(
      [] {
        torch::nn::Sequential blocks;
        for (int i = 0; i < 4; ++i) blocks->push_back(Pair());
        return blocks;
      },
      each_child_of("", 3) | each_child_of("1", 2) |
          by_name([](auto fqn) { return fqn == "3.second"; }));
}

TEST_CASE("the root of a model may be a fsdp::Unit, and its layers units by policy") {
  struct NetImpl : torch::nn::Module {
    NetImpl() { layers = register_module("layers", rows_of_linears(kLayers)); }
    at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
    torch::nn::Sequential layers;
  };
  NetImpl plain;
  mean_gradients(plain, 2, [&](int rank) { plain.forward(input_of(rank)).sum().backward(); });
  run_torch_ranks(2, [&](Mesh mesh) {
    Unit<NetImpl> model;
    Engine engine(model, mesh, {.units = each_child_of("layers", 2)});
    model(input_of(mesh.rank()).to(engine.device())).sum().backward();
    for (const ShardedParameter& parameter : engine.sharded_parameters()) {
      const at::Tensor whole = plain.named_parameters()[parameter.fqn].grad().flatten();
      CHECK(bit_equal(whole.narrow(0, parameter.begin, parameter.local.numel()),
                      parameter.local.grad().cpu()));
    }
    check_says(engine.describe(), "layers.2-3");
  });
}

TEST_CASE("under a BuildScope the layers of a unit are sharded together") {
  const torch::nn::Sequential plain =
      plain_after([](auto& layers, const auto& x, int) { return in_a_row(layers, x); }, 2, kLayers);
  run_torch_ranks(2, [&](Mesh mesh) {
    BuildScope building(mesh, {.units = each_child_of("", 2), .seed = 5});
    torch::nn::Sequential layers;
    for (int i = 0; i < 2; ++i) {
      for (auto& each :
           building.shard(std::vector{torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)})) {
        layers->push_back(each);
      }
    }
    layers->push_back(building.shard(torch::nn::Linear(4, 4)));
    Engine engine(layers, building);
    engine
        .forward([&](const at::Tensor& x) { return layers->forward(x).square().sum(); },
                 input_of(mesh.rank()).to(engine.device()))
        .backward();
    check_gradients(engine, plain);
  });
  run_torch_ranks(2, [](Mesh mesh) {
    BuildScope building(mesh, {.units = each_child_of("", 2)});
    torch::nn::Sequential layers;
    for (int i = 0; i < 2; ++i) layers->push_back(building.shard(torch::nn::Linear(4, 4)));
    CHECK_THROWS_WITH_AS(Engine(layers, building),
                         doctest::Contains("the 2 layers of unit '0-1' were not sharded together"),
                         InvalidArgument);
  });
}

TEST_CASE("units of several layers that cannot be are refused by name") {
  for (const int layers : {0, -4}) {
    CHECK_THROWS_WITH_AS(
        each_child_of("blocks", layers),
        doctest::Contains(
            fmt::format("each_child_of(\"blocks\", {0}): a unit has {0} layers, expected 1 or more",
                        layers)
                .c_str()),
        InvalidArgument);
  }
  const auto linears = [] { return rows_of_linears().ptr(); };
  const UnitPolicy pairs = each_child_of("", 2);
  check_says(error_of_engine(linears, {.units = pairs | by_type<torch::nn::Linear>()}),
             "two policies choose '0': each_child_of(\"\", 2) for a unit of 2 layers, by_type for "
             "a unit of 1 layers");
  check_says(error_of_engine(linears, {.units = pairs | each_child_of("", 2)}), "no error");
  check_says(error_of_engine(linears, {.units = pairs, .recompute = 1}),
             "unit '0-1' was chosen by Options::units and cannot be recomputed");
  check_says(error_of_engine(linears, {.units = each_child_of("layer", 2)}),
             "each_child_of(\"layer\", 2) chooses no module");
  const auto units = [] {
    torch::nn::ModuleList list;
    for (int i = 0; i < 2; ++i) list->push_back(Unit<torch::nn::Linear>(4, 4).ptr());
    return list.ptr();
  };
  check_says(error_of_engine(units, {.units = pairs}),
             "'0' is a fsdp::Unit, but each_child_of(\"\", 2) puts it into a unit of 2 layers");
  check_says(error_of_engine(units, {.units = each_child_of("")}), "no error");
}

TEST_CASE("units of several layers have names, options and whole values like others") {
  run_torch_ranks(2, [](Mesh mesh) {
    torch::nn::Sequential layers = rows_of_linears(kLayers);
    std::vector<std::string> asked;
    Engine engine(layers, mesh, {.units = each_child_of("", 2), .unit_options = [&](auto fqn) {
                                   asked.emplace_back(fqn);
                                   return UnitOptions{.reshard_after_forward = fqn != "2-3"};
                                 }});
    CHECK(asked == std::vector<std::string>{"", "0-1", "2-3", "4"});
    const std::string table = engine.describe();
    check_says(table, "\n0-1 ");
    check_says(table, "  is 2 modules: torch::nn::LinearImpl\n2-3 ");
    check_says(table, "\n4 ");
    check_says(table, "  is a torch::nn::LinearImpl\n");
    std::vector<std::string> names;
    for (const ShardedParameter& each : engine.sharded_parameters()) names.push_back(each.fqn);
    CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "2.weight",
                                            "2.bias", "3.weight", "3.bias", "4.weight", "4.bias"});
    {
      const Gathered whole(engine, "2-3");
      torch::nn::Sequential plain = rows_of_linears(kLayers);
      CHECK(bit_equal(layer(layers, 3).weight.detach().cpu(), layer(plain, 3).weight.detach()));
    }
    CHECK_THROWS_WITH_AS(Gathered(engine, "2"),
                         doctest::Contains("use one of '', '0-1', '2-3', '4'"), InvalidArgument);
    int kept = 0;
    engine.observe_events([&](std::string_view event, std::string_view unit) {
      if (event == "unshard" && unit == "2-3") ++kept;
    });
    engine
        .forward([&](const at::Tensor& x) { return layers->forward(x).sum(); },
                 input_of(0).to(engine.device()))
        .backward();
    CHECK(kept == 1);
    engine.observe_events(nullptr);
  });
}
