// Tests the time for which compute waits for communication, measured by the simulated GPU's clock.
#include <fsdp/engine.h>
#include <fsdp/trace.h>

#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("exposed communication is counted while a trace is taken, and not else") {
  const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
      .simulation = {.seed = 5}, .wire = {.latency = std::chrono::microseconds(10)}});
  const RunRanksOptions options = on_simulated_gpu(session);
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
        Engine engine(model, mesh, {.prefetch_units = 0});
        const auto step = [&](int number) {
          graph_loss(*model, number, mesh.rank()).backward();
          engine.zero_grad();
          state_of(engine).context->streams.compute->synchronize();
          return engine.stats().exposed_comm_ns;
        };
        CHECK(step(0) == 0);
        CHECK(step(1) == 0);
        int64_t traced = 0;
        {
          const Trace trace(engine);
          traced = step(2);
          CHECK(traced > 0);
          const int64_t more = step(3);
          CHECK(more > traced);
          traced = more;
        }
        CHECK(step(4) == traced);
      },
      options);
}
