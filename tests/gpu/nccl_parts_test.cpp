// Tests parts of a mesh in which each rank has a GPU, on one host and on two hosts that share only
// a store.
#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("engines on two parts train different models by NCCL, with the bits of plain ones") {
  const std::array<Twin, 2> twins{graph_twin(3, 8, in_a_row), graph_twin(2, 6, in_a_row)};
  const std::array<Trained, 2> plain{train_plain(twins[0], 2), train_plain(twins[1], 2)};
  for (const int hosts : {1, 2}) {
    CAPTURE(hosts);
    const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
        .simulation = {.seed = 11, .devices = 4}, .nccl = true, .hosts = hosts});
    std::array<Trained, 2> trained;
    run_ranks(
        4,
        [&](const Mesh& mesh) {
          const int color = mesh.rank() % 2;  // each part contains ranks of both hosts
          const Mesh part = mesh.part(color, {.shard = 2});
          const auto model = build_seeded(7, twins[color].make);
          Engine engine(model, part, {});
          const auto optimizer = twin_optimizer(TwinOptimizer::kSgd, engine.parameters());
          for (int step = 0; step < twins[color].steps; ++step) {
            const at::Tensor loss = twins[color].loss(*model, step, part.rank());
            loss.backward();
            optimizer->step();
            optimizer->zero_grad();
            if (part.rank() == 0) trained[color].losses.push_back(loss.item<float>());
            CHECK(mesh.max(mesh.rank()) == 3);
          }
          auto parameters = full_parameters(engine);
          if (part.rank() == 0) trained[color].parameters = std::move(parameters);
        },
        on_simulated_gpu(session));
    for (const int color : {0, 1}) {
      CAPTURE(color);
      REQUIRE_FALSE(trained[color].parameters.empty());
      check_same_bits(trained[color], plain[color]);
    }
  }
}
