// Keeps main state on the host, with a simulated GPU that runs work as late as possible. The host
// may read only data that has arrived.
#include <fsdp/optim.h>

#include <functional>
#include <map>
#include <string>

#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Parameters = std::map<std::string, at::Tensor>;
using TrainSteps = std::function<void(torch::nn::Module& model, Engine& engine, int rank)>;

// Runs two backwards. The second adds to the sum that the first has stored on the host. Nothing is
// read in between, because the host would wait for it.
void backward_twice(torch::nn::Module& model, int step, int rank) {
  graph_loss(model, 2 * step, rank).backward();
  graph_loss(model, 2 * step + 1, rank).backward();
}

void with_ours(torch::nn::Module& model, Engine& engine, int rank) {
  AdamW optimizer(engine, {.lr = 1e-2});
  for (int step = 0; step < 3; ++step) {
    backward_twice(model, step, rank);
    optimizer.clip_grad_norm(0.1);
    optimizer.step();
    optimizer.zero_grad();
  }
}

void with_plain(torch::nn::Module& model, Engine& engine, int rank) {
  torch::optim::SGD optimizer(engine.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    backward_twice(model, step, rank);
    optimizer.step();
    optimizer.zero_grad();
  }
}

Parameters train(int world, const TrainSteps& steps, const RunRanksOptions& ranks) {
  Parameters result;
  run_ranks(
      world,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
        Engine engine(model, mesh, {.prefetch_units = 2, .cpu_offload = true});
        steps(*model, engine, mesh.rank());
        Parameters whole = full_parameters(engine);
        if (mesh.rank() == 0) result = std::move(whole);
      },
      ranks);
  return result;
}

}  // namespace

TEST_CASE("the host's steps wait for gradients that are still on their way") {
  for (const TrainSteps& steps : {TrainSteps(with_ours), TrainSteps(with_plain)}) {
    for (const int world : {1, 2}) {
      CAPTURE(world);
      RunRanksOptions on_cpu = torch_ranks_options();
      on_cpu.make = {};
      const Parameters expected = train(world, steps, on_cpu);
      const auto session = std::make_shared<SimulatedSession>(
          SimulatedRanksOptions{.simulation = {.schedule = sim::Schedule::kLate}});
      for (const auto& [fqn, value] : train(world, steps, on_simulated_gpu(session))) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
    }
  }
}
