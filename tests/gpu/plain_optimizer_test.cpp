// Tests LibTorch's own optimizers on views of main shards. The engine detects that they changed the
// shards' content.
#include <fmt/format.h>
#include <fsdp/engine.h>

#include <map>
#include <string>
#include <vector>

#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kSteps = 3;

struct TrainedPlainly {
  std::map<std::string, at::Tensor> parameters;
  int64_t waits_of_step = 0;  // number of host waits for the device, per rank
};

// Trains with an SGD that bypasses the engine, because it writes through Tensor::data().
TrainedPlainly train(int world, int units, const RunRanksOptions& options,
                     const std::function<int64_t()>& waits) {
  TrainedPlainly result;
  run_ranks(
      world,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(units, 6, in_a_row).make);
        Engine engine(model, mesh);
        torch::optim::SGD optimizer(engine.parameters(), 0.1);
        int64_t before = 0;
        for (int step = 0; step < kSteps; ++step) {
          mesh.agree("step", {});
          if (mesh.rank() == 0) before = waits();
          mesh.agree("counted", {});
          graph_loss(*model, step, mesh.rank()).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        mesh.agree("end", {});
        if (mesh.rank() == 0) result.waits_of_step = (waits() - before) / world;
        mesh.agree("counted", {});
        auto whole = full_parameters(engine);
        if (mesh.rank() == 0) result.parameters = std::move(whole);
      },
      options);
  return result;
}

}  // namespace

TEST_CASE("with a plain optimizer the host waits twice a step, however many units there are") {
  for (const int units : {1, 4}) {
    for (const int world : {1, 2}) {
      CAPTURE(units);
      CAPTURE(world);
      const auto session =
          std::make_shared<SimulatedSession>(SimulatedRanksOptions{.simulation = {.seed = 5}});
      RunRanksOptions options = on_simulated_gpu(session);
      const TrainedPlainly on_gpu = train(world, units, options, [&] {
        int64_t all = 0;
        for (const auto& [what, count] : session->gpu.host_waits()) all += count;
        return all;
      });
      CHECK(on_gpu.waits_of_step == 2);  // at the start of forward and of backward
      options.make = nullptr;
      const TrainedPlainly on_cpu = train(world, units, options, [] { return 0; });
      REQUIRE(on_gpu.parameters.size() == on_cpu.parameters.size());
      for (const auto& [name, expected] : on_cpu.parameters) {
        CAPTURE(name);
        CHECK(at::equal(on_gpu.parameters.at(name), expected));
      }
    }
  }
}
