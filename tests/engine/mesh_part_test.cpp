// Tests engines on parts of a mesh. Each part trains its own model, at the same time as the others.
#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Trains on the part of this rank, and calls `between` after each step. Returns the result on rank
// 0 of the part, and an empty result on other ranks.
Trained train_on(const Mesh& part, const Twin& twin, const Options& options,
                 const std::function<void(float loss)>& between) {
  Trained trained;
  const auto model = build_seeded(7, twin.make);
  Engine engine(model, part, options);
  const auto optimizer = twin_optimizer(twin.optimizer, engine.parameters());
  for (int step = 0; step < twin.steps; ++step) {
    const at::Tensor loss = twin.loss(*model, step, part.rank());
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    between(loss.item<float>());
    if (part.rank() == 0) trained.losses.push_back(loss.item<float>());
  }
  auto parameters = full_parameters(engine);
  if (part.rank() == 0) trained.parameters = std::move(parameters);
  return trained;
}

}  // namespace

TEST_CASE("engines on two parts train different models, each with the bits of a plain one") {
  std::array<Twin, 2> twins{graph_twin(3, 8, in_a_row), graph_twin(2, 6, in_a_row)};
  twins[1].optimizer = TwinOptimizer::kAdam;
  for (const CpuStreamKind streams : every_stream_kind()) {
    std::array<Trained, 2> trained;
    run_torch_ranks(4, [&](const Mesh& mesh) {
      const int color = mesh.rank() / 2;
      const Mesh part = mesh.part(color);
      Trained own =
          train_on(part, twins[color], {.debug = true, .tuning = {.cpu_streams = streams}},
                   [&](float loss) { CHECK(mesh.max(loss) >= loss); });
      if (part.rank() == 0) trained[color] = std::move(own);
    });
    for (const int color : {0, 1}) {
      CAPTURE(color);
      REQUIRE_FALSE(trained[color].parameters.empty());
      check_same_bits(trained[color], train_plain(twins[color], 2));
    }
  }
}

TEST_CASE("a part shards inside its groups and replicates across them, beside a rank alone") {
  const Twin twin = graph_twin(3, 8, in_a_row);
  std::array<Trained, 2> trained;
  run_torch_ranks(5, [&](const Mesh& mesh) {
    const int color = mesh.rank() / 4;
    const Mesh part = mesh.part(color, {.shard = color == 0 ? 2 : 1});
    Trained own = train_on(part, twin, {.strategy = Strategy::kHybridShard}, [](float) {});
    if (part.rank() == 0) trained[color] = std::move(own);
  });
  check_same_bits(trained[0], train_plain(twin, MeshShape{.replicate = 2, .shard = 2}, true));
  check_same_bits(trained[1], train_plain(twin, 1));
}

TEST_CASE("a mesh that has engines is not split, and may be when they are gone") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    const auto model = build_seeded(1, [] { return Unit<Chain>(); });
    {
      const Engine engine(model, mesh);
      CHECK_THROWS_WITH_AS(
          mesh.part(0),
          "cannot split a mesh that has engines (Mesh::part); collectives of these engines may be "
          "in progress; hint: split the mesh before you make its engines",
          StateError);
    }
    CHECK(mesh.part(0).sum(1) == 2);
  });
}

TEST_CASE("a rank that fails in one part ends the training of the other") {
  const Twin twin = graph_twin(2, 6, in_a_row);
  const auto errors = errors_of_ranks(
      4,
      [&](const Mesh& mesh) {
        const Mesh part = mesh.part(mesh.rank() / 2);
        Twin endless = twin;
        endless.steps = 1'000'000;
        int step = 0;
        train_on(part, endless, {}, [&](float) {
          if (mesh.rank() == 3 && ++step == 2) throw std::runtime_error("no such batch");
        });
      },
      torch_ranks_options());
  CHECK(errors[3] == "no such batch");
  for (const int rank : {0, 1, 2}) {
    CHECK(errors[rank].find("rank 3 gave up") == 0);
    CHECK(errors[rank].find("no such batch") != std::string::npos);
  }
}
