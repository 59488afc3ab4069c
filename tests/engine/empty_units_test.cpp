// Tests units whose parameters are all empty. The engine must not gather or reduce a byte for them.
#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

namespace nn = torch::nn;

// A module with the usual parameter `dummy = torch.empty(0)`, which shows on which device the
// module is.
struct HollowImpl : nn::Module {
  HollowImpl() {
    dummy = register_parameter("dummy", torch::empty({0}));
    frozen = register_parameter("frozen", torch::empty({0, 3}), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x) + dummy.sum() + frozen.sum(); }
  at::Tensor dummy, frozen;
};
TORCH_MODULE(Hollow);

template <class Layer, class HollowLayer>
struct WithHollowImpl : nn::Module {
  WithHollowImpl() : one(5, 5), two(5, 5) {
    register_module("one", one);
    register_module("hollow", hollow);
    register_module("two", two);
    mark = register_parameter("mark", torch::empty({2, 0}));
  }
  at::Tensor forward(const at::Tensor& x) { return two(hollow(one(x) + mark.sum())); }
  Layer one, two;
  HollowLayer hollow;
  at::Tensor mark;
};
using HollowUnits = WithHollowImpl<Unit<nn::Linear>, Unit<Hollow>>;
using HollowPlain = WithHollowImpl<nn::Linear, Hollow>;

// A model whose root has no bytes of its own.
template <class Root>
Twin hollow_twin() {
  return {.make = [] { return std::make_shared<Root>(); },
          .loss =
              [](nn::Module& model, int step, int rank) {
                return dynamic_cast<Root&>(model)
                    .forward(values({3, 5}, 100 * step + rank))
                    .square()
                    .mean();
              }};
}

}  // namespace

TEST_CASE("units of empty parameters train to the plain bits in every strategy") {
  const Twin twin = hollow_twin<UnitImpl<HollowUnits>>();
  for (const int world : {1, 2, 3}) {
    const Trained plain = train_plain(twin, world);
    int number = 0;
    for (const Strategy strategy : kStrategies) {
      for (const bool maps : {false, true}) {
        if (!is_tried(world + ++number)) continue;
        CAPTURE(world);
        CAPTURE(name_of(strategy));
        CAPTURE(maps);
        check_same_bits(train_sharded(twin, world,
                                      {.prefetch_units = number % 3,
                                       .recompute = number % 2,
                                       .cpu_offload = number % 4 == 0,
                                       .strategy = strategy,
                                       .debug = true,
                                       .tuning = {.map_shards = maps}}),
                        plain);
      }
    }
  }
}

TEST_CASE("units of empty parameters by policy do, too") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, hollow_twin<HollowPlain>().make);
    const auto plain = build_seeded(7, hollow_twin<HollowPlain>().make);
    Engine engine(model, mesh, {.units = by_type<nn::LinearImpl, HollowImpl>(), .debug = true});
    const auto run = [](nn::Module& of, int rank) {
      return dynamic_cast<HollowPlain&>(of).forward(values({3, 5}, rank)).square().mean();
    };
    engine.forward([&] { return run(*model, mesh.rank()); }).backward();
    mean_gradients(*plain, 2, [&](int rank) { run(*plain, rank).backward(); });
    const auto expected = plain->named_parameters();
    for (const ShardedParameter& parameter : engine.sharded_parameters()) {
      CAPTURE(parameter.fqn);
      if (parameter.local.numel() == 0) continue;
      const at::Tensor whole = expected[parameter.fqn].grad().flatten();
      CHECK(bit_equal(whole.narrow(0, parameter.begin, parameter.local.numel()),
                      parameter.local.grad()));
    }
    CHECK(engine.clip_grad_norm(1.0).norm() > 0);
    const Gathered whole(engine);
    CHECK(dynamic_cast<HollowPlain&>(*model).hollow->dummy.sum().item<float>() == 0);
  });
}

TEST_CASE("a model of nothing but empty parameters has nothing to train") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [](Mesh mesh) {
      Unit<Hollow> model;
      Engine engine(model, mesh, {.debug = true});
      model(values({3, 5}, 1).requires_grad_()).sum().backward();
      CHECK(engine.clip_grad_norm(1.0).norm() == 0);
      engine.zero_grad();
    });
  }
}
