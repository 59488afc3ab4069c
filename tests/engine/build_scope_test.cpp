#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

TEST_CASE("plain builds get rank 0's values; a BuildScope gives the seed's, for any world") {
  const auto plain = build_seeded(11, [] { return Unit<Chain>(8, 2); });
  const auto expected = plain_parameters(*plain);
  const auto check = [&](Engine& engine) {
    const auto whole = full_parameters(engine);
    CHECK(whole.size() == expected.size());
    for (const auto& [fqn, value] : whole) CHECK(bit_equal(value, expected.at(fqn)));
  };
  for (const int world : {1, 2, 3, 5}) {
    for (const Strategy strategy : kStrategies) {
      CAPTURE(world);
      run_torch_ranks(world, [&](Mesh mesh) {
        auto model = build_seeded(mesh.rank() == 0 ? 11 : 99, [] { return Unit<Chain>(8, 2); });
        Engine engine(model, mesh, {.strategy = strategy});
        check(engine);
      });
      run_torch_ranks(world, [&](Mesh mesh) {
        BuildScope building(mesh, {.strategy = strategy, .seed = 11});
        Unit<Chain> model(8, 2);
        Engine engine(model, building);
        check(engine);
        loss_of(model, batch_of(0, mesh.rank())).backward();
        CHECK(engine.measure_gradients().finite());
      });
    }
  }
}

TEST_CASE("under a BuildScope no more than the shards and one unit exist at any time") {
  struct WatchedImpl : nn::Module {
    explicit WatchedImpl(std::vector<Unit<nn::Linear>>& made) : made_(made) {
      for (int i = 0; i < 4; ++i) {
        made_.emplace_back(8, 8);
        register_module("l" + std::to_string(i), made_.back());
        // The module is sharded as soon as it is made, so its whole values are not available any
        // more.
        CHECK_THROWS_WITH(made_.back()->weight.sum(),
                          doctest::Contains("initialise parameters in the constructor"));
      }
    }
    at::Tensor forward(const at::Tensor& x) { return x; }
    std::vector<Unit<nn::Linear>>& made_;
  };
  struct Watched : nn::ModuleHolder<WatchedImpl> {
    using nn::ModuleHolder<WatchedImpl>::ModuleHolder;
  };
  run_torch_ranks(2, [](Mesh mesh) {
    BuildScope building(mesh);
    std::vector<Unit<nn::Linear>> made;
    Unit<Watched> model(made);
    Engine engine(model, building);
    CHECK(engine.stats().memory.in_use.total() ==
          4 * state_of(engine).model.units[1]->shard->layout().slice_numel() * 4);
    CHECK_THROWS_WITH_AS(Engine(model, building), doctest::Contains("passed to an engine before"),
                         StateError);
  });
}

TEST_CASE(
    "units that were discarded before the engine are forgotten, whoever gets their addresses") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [](Mesh mesh) {
      BuildScope building(mesh, {.seed = 3});
      for (int i = 0; i < 20; ++i) {
        const Unit<nn::Linear> tried(8 + i % 3, 8);
        const Unit<Chain> whole(8, 1 + i % 2);
      }
      at::manual_seed(3);
      Unit<Chain> model(8, 2);
      Engine engine(model, building);
      loss_of(model, batch_of(0, mesh.rank())).backward();
      const auto expected = plain_parameters(*build_seeded(3, [] { return Unit<Chain>(8, 2); }));
      if (mesh.world_size() > 1) return;  // the process's only generator serves one rank at a time
      for (const auto& [fqn, value] : full_parameters(engine)) {
        CHECK(bit_equal(value, expected.at(fqn)));
      }
    });
  }
}

TEST_CASE("a collective of thread ranks inside an open BuildScope is refused at once") {
  RunRanksOptions options = torch_ranks_options();
  options.mesh.timeout = std::chrono::minutes(10);
  const auto refused = [](const auto& call, const char* text) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains(text), StateError);
  };
  run_ranks(
      3,
      [&](Mesh mesh) {
        auto other = build_seeded(7, [] { return Unit<Chain>(); });
        Engine engine(other, mesh);
        {
          BuildScope building(mesh, {.seed = 11});
          refused([&] { static_cast<void>(mesh.sum(1.0, "rows")); },
                  "all_reduce 'rows' cannot run inside an open BuildScope");
          refused([&] { static_cast<void>(mesh.exchange("names", "a")); },
                  "'names' cannot run inside an open");
          refused([&] { loss_of(other, batch_of(0, mesh.rank())); }, "inside an open BuildScope");
          Unit<Chain> model;
          const Engine built(model, building);
          CHECK(mesh.sum(1.0, "rows") == 3);
        }
        const Mesh alone = Mesh::single();
        const BuildScope building(mesh);
        CHECK(alone.sum(1.0, "rows") == 1);  // waits for no other rank
      },
      options);
}
