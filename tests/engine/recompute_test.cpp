// Tests the recomputation of activations, for functions and for units of an engine.
#include <fsdp/recompute.h>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "plan/placement.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct HiddenAndMask {
  at::Tensor hidden;
  std::optional<at::Tensor> mask;
  int64_t layer = 0;
};

struct PartsAndCount {
  std::vector<at::Tensor> parts;
  std::pair<at::Tensor, int64_t> count;
};

// Returns the gradients of all parameters and of x.
std::vector<at::Tensor> gradients_of(const torch::nn::Module& module, const at::Tensor& x) {
  std::vector<at::Tensor> gradients{x.grad().clone()};
  for (const at::Tensor& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

void check_same(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  REQUIRE(one.size() == other.size());
  for (size_t i = 0; i < one.size(); ++i) CHECK(bit_equal(one[i], other[i]));
}

struct DropoutBlockImpl : torch::nn::Module {
  explicit DropoutBlockImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::dropout(torch::tanh(linear(x)), 0.5, is_training());
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(DropoutBlock);

struct DropoutsImpl : torch::nn::Module {
  explicit DropoutsImpl(int64_t width) : first(width), second(width) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<DropoutBlock> first, second;
};
TORCH_MODULE(Dropouts);

struct WritingImpl : torch::nn::Module {
  explicit WritingImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  void forward(at::Tensor& x) { x = linear(x); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Writing);

struct HolderImpl : torch::nn::Module {
  HolderImpl() : writing(4) { register_module("writing", writing); }
  at::Tensor forward(at::Tensor x) {
    writing(x);
    return x;
  }
  Unit<Writing> writing;
};
TORCH_MODULE(Holder);

struct NestImpl : torch::nn::Module {
  explicit NestImpl(int64_t width) : inner(width, width), outer(width, width) {
    register_module("inner", inner);
    register_module("outer", outer);
  }
  at::Tensor forward(const at::Tensor& x) { return outer(torch::tanh(inner(x))) + x; }
  Unit<torch::nn::Linear> inner;
  torch::nn::Linear outer;
};
TORCH_MODULE(Nest);

struct NestsImpl : torch::nn::Module {
  NestsImpl(int count, int64_t width) {
    for (int i = 0; i < count; ++i) {
      nests.emplace_back(width);
      register_module("n" + std::to_string(i), nests.back());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& nest : nests) x = nest(x);
    return x;
  }
  std::vector<Unit<Nest>> nests;
};
TORCH_MODULE(Nests);

Twin nests_twin() {
  return {.make = [] { return Unit<Nests>(3, 6).ptr(); },
          .loss =
              [](torch::nn::Module& model, int step, int rank) {
                return dynamic_cast<UnitImpl<NestsImpl>&>(model)
                    .call(values({3, 6}, 100 * step + rank))
                    .square()
                    .mean();
              }};
}

}  // namespace

TEST_CASE("a recomputed function has the plain gradients, and its tensors are not kept") {
  at::set_num_threads(1);
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::GELU(), torch::nn::Linear(32, 8));
  int calls = 0;
  const auto run = [&](bool recomputed) {
    const at::Tensor x = values({4, 8}, 1).requires_grad_();
    const auto fn = [&](const at::Tensor& h) {
      ++calls;
      return net->forward(h);
    };
    const at::Tensor y = recomputed ? recompute(fn, x) : fn(x);
    y.square().sum().backward();
    return gradients_of(*net, x);
  };
  const auto plain = run(false);
  calls = 0;
  check_same(run(true), plain);
  CHECK(calls == 2);
  const torch::NoGradGuard no_grad;
  calls = 0;
  CHECK_FALSE(
      recompute([&](const at::Tensor& h) { return ++calls, net->forward(h); }, values({4, 8}, 1))
          .requires_grad());
  CHECK(calls == 1);
}

TEST_CASE("inputs and outputs are any that hold tensors") {
  torch::manual_seed(3);
  torch::nn::Linear linear(4, 4);
  const auto fn = [&](const HiddenAndMask& in, const std::vector<at::Tensor>& more, int64_t times) {
    at::Tensor h = linear(in.hidden) * static_cast<double>(times + in.layer);
    if (in.mask) h = h * *in.mask;
    return PartsAndCount{.parts = {h, more[0] + h, in.hidden}, .count = {h.argmax(-1), times}};
  };
  const auto run = [&](bool recomputed) {
    const at::Tensor x = values({2, 4}, 1).requires_grad_(), other = values({2, 4}, 2);
    const HiddenAndMask in{.hidden = x, .mask = values({4}, 3), .layer = 2};
    const PartsAndCount out = recomputed
                                  ? recompute(fn, in, std::vector<at::Tensor>{other}, int64_t{3})
                                  : fn(in, {other}, 3);
    CHECK(out.count.second == 3);
    CHECK((out.count.first.scalar_type() == torch::kLong));
    CHECK_FALSE(out.count.first.requires_grad());
    (out.parts[0].sum() + (out.parts[1] * out.parts[2]).sum()).backward();
    return gradients_of(*linear, x);
  };
  check_same(run(true), run(false));
}

TEST_CASE("random numbers are drawn as in forward, and the generator goes on as if once") {
  torch::manual_seed(3);
  DropoutBlock block(16);
  const auto run = [&](bool recomputed) {
    torch::manual_seed(11);
    const at::Tensor x = values({4, 16}, 1).requires_grad_();
    const auto fn = [&](const at::Tensor& h) { return block(h); };
    at::Tensor y = x;
    for (int i = 0; i < 3; ++i) y = recomputed ? recompute(fn, y) : fn(y);
    const at::Tensor between = torch::rand({1});
    y.sum().backward();
    auto all = gradients_of(*block, x);
    all.push_back(between);
    all.push_back(torch::rand({1}));
    return all;
  };
  check_same(run(true), run(false));
}

TEST_CASE("a recomputation that throws leaves the generator where it was") {
  const auto draw_after = [](bool throws) {
    torch::manual_seed(11);
    int calls = 0;
    const auto fails_again = [&](const at::Tensor& h) {
      at::Tensor dropped = torch::dropout(h, 0.5, true);
      if (++calls == 2) throw std::runtime_error("not a second time");
      return dropped;
    };
    const at::Tensor sum = recompute(fails_again, values({4, 16}, 1).requires_grad_()).sum();
    static_cast<void>(torch::rand({3}));
    if (throws) CHECK_THROWS_WITH(sum.backward(), "not a second time");
    return torch::rand({4});
  };
  CHECK(bit_equal(draw_after(true), draw_after(false)));
}

TEST_CASE("functions inside functions are recomputed, too") {
  torch::manual_seed(3);
  DropoutBlock block(8);
  int calls = 0;
  const auto fn = [&](const at::Tensor& h) { return ++calls, block(h); };
  const auto run = [&](bool recomputed) {
    torch::manual_seed(11);
    const at::Tensor x = values({4, 8}, 1).requires_grad_();
    const auto outer = [&](const at::Tensor& h) {
      return recomputed ? recompute(fn, recompute(fn, h)) : fn(fn(h));
    };
    (recomputed ? recompute(outer, x) : outer(x)).sum().backward();
    return gradients_of(*block, x);
  };
  const auto plain = run(false);
  calls = 0;
  check_same(run(true), plain);
  CHECK(calls == 6);  // forward, the outer recomputation, and each inner one
}

TEST_CASE("a function that draws otherwise, autograd::grad and create_graph are refused") {
  const at::Tensor x = values({2, 4}, 1).requires_grad_();
  int calls = 0;
  const auto fickle = [&](const at::Tensor& h) {
    return ++calls == 1 ? h * 2 : h * torch::rand_like(h);
  };
  CHECK_THROWS_WITH_AS(recompute(fickle, x).sum().backward(),
                       doctest::Contains("drew different random numbers than in forward"),
                       StateError);
  const auto twice = [](const at::Tensor& h) { return h * 2; };
  CHECK_THROWS_WITH_AS(
      torch::autograd::grad({recompute(twice, x).sum()}, {x}),
      doctest::Contains("autograd::grad is not supported through a recomputed function"),
      StateError);
  CHECK_THROWS_WITH_AS(
      recompute(twice, x).sum().backward({}, true, true),
      doctest::Contains("create_graph is not supported through a recomputed function"), StateError);
}

TEST_CASE("recomputed units have the plain model's bits, in every strategy") {
  const Twin twin = graph_twin(4, 6, in_a_row);
  for (const int world : {1, 2, 3}) {
    const Trained plain = train_plain(twin, world);
    for (const int every : {1, 2, 3}) {
      for (const Strategy strategy : kStrategies) {
        if (world == 1 && strategy != Strategy::kFullShard) continue;
        if (!is_tried(world + every + static_cast<int>(strategy))) continue;
        CAPTURE(world);
        CAPTURE(every);
        CAPTURE(name_of(strategy));
        check_same_bits(
            train_sharded(twin, world,
                          {.reshard_after_forward = every != 3,
                           .prefetch_units = every - 1,
                           .recompute = every,
                           .strategy = strategy,
                           .debug = true,
                           .tuning = {.cpu_streams = every == 2 ? CpuStreamKind::kThreaded
                                                                : CpuStreamKind::kInline}}),
            plain);
      }
    }
  }
}

TEST_CASE("units inside recomputed units, recomputed themselves or not") {
  const Twin twin = nests_twin();
  for (const int world : {1, 2}) {
    const Trained plain = train_plain(twin, world);
    for (const std::string_view which : {"outer", "inner", "both", "root"}) {
      CAPTURE(which);
      const auto unit_options = [which](std::string_view fqn) {
        const bool is_inner = fqn.ends_with(".inner");
        const bool chosen = which == "root"    ? fqn.empty()
                            : which == "inner" ? is_inner
                            : which == "outer" ? !fqn.empty() && !is_inner
                                               : !fqn.empty();
        return UnitOptions{.recompute = chosen};
      };
      check_same_bits(train_sharded(twin, world, {.unit_options = unit_options, .debug = true}),
                      plain);
    }
  }
}

TEST_CASE("a recomputation gathers its unit once, for its forward and its backward") {
  constexpr int64_t kLayers = 4;
  for (const int every : {0, 1, 2}) {
    CAPTURE(every);
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(kLayers, 6, in_a_row).make);
      Engine engine(model, mesh, {.recompute = every});
      for (int step = 0; step < 3; ++step) {
        const int64_t gathers = engine.stats().all_gathers, reduces = engine.stats().reduces;
        graph_loss(*model, step, mesh.rank()).backward();
        engine.zero_grad();
        CHECK(engine.stats().all_gathers - gathers == kLayers + 1 + kLayers);
        CHECK(engine.stats().reduces - reduces == kLayers + 1);
      }
    });
  }
}

TEST_CASE("dropout in recomputed units draws as in forward") {
  const auto train = [](int every) {
    std::map<std::string, at::Tensor> parameters;
    run_torch_ranks(1, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Dropouts>(8); });
      Engine engine(model, mesh, {.recompute = every});
      const auto optimizer = twin_optimizer(TwinOptimizer::kSgd, engine.parameters());
      torch::manual_seed(5);
      for (int step = 0; step < 3; ++step) {
        model(values({4, 8}, step)).square().mean().backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      parameters = full_parameters(engine);
    });
    return parameters;
  };
  const auto kept = train(0), again = train(1);
  for (const auto& [fqn, value] : kept) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, again.at(fqn)));
  }
}

TEST_CASE(
    "a forward that writes to its argument is not recomputed, and wrong numbers are refused") {
  run_torch_ranks(1, [&](Mesh mesh) {
    Unit<Holder> model;
    Engine engine(model, mesh, {.recompute = 1});
    CHECK_THROWS_WITH_AS(model(values({2, 4}, 1)), doctest::Contains("may write to its arguments"),
                         InvalidArgument);
    Unit<torch::nn::Linear> other(4, 4);
    CHECK_THROWS_WITH_AS(Engine(other, mesh, {.recompute = -1}),
                         doctest::Contains("recompute is -1"), InvalidArgument);
  });
}
