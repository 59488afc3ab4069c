// Tests the duration of a step in which communication and compute have given durations. The
// simulated GPU has virtual time, so the duration must equal the schedule in docs/performance.md to
// the nanosecond.
#include <algorithm>
#include <vector>

#include "simulator/torch/simulated_ranks.h"
#include "support/overlapped_step.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the time of the slower rank in ns for the third step. By then the order of the units is
// known.
int64_t time_of(const Step& step, uint32_t seed) {
  const auto latency =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::nanoseconds(step.wire));
  const auto session = std::make_shared<SimulatedSession>(
      SimulatedRanksOptions{.simulation = {.seed = seed}, .wire = {.latency = latency}});
  const RunRanksOptions options = on_simulated_gpu(session);
  std::vector<int64_t> times(2);
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, [&] { return Unit<Row>(step.units, step.lends).ptr(); });
        Engine engine(model, mesh, {.prefetch_units = step.prefetch});
        const TimedCompute own(mesh);
        compute = &own;
        for (int i = 0; i < 3; ++i) {
          own.mark(0);
          dynamic_cast<UnitImpl<RowImpl>&>(*model).call(values({1, 16}, 3)).sum().backward();
          own.mark(1);
          times[mesh.rank()] = own.marked(1) - own.marked(0);
          engine.zero_grad();
        }
        compute = nullptr;
      },
      options);
  return std::max(times[0], times[1]);
}

}  // namespace

TEST_CASE("a step takes the overlapped time to the nanosecond, for any prefetch and wire") {
  for (const int prefetch : {0, 1, 2}) {
    for (const int64_t wire : {20, 80, 100, 160, 300}) {
      CAPTURE(prefetch);
      CAPTURE(wire);
      const Step step{.units = alternating(6), .wire = wire * kMicrosecond, .prefetch = prefetch};
      CHECK(time_of(step, 1) == overlapped(step.units, step.wire, prefetch));
    }
  }
}

TEST_CASE(
    "the step's time is that of the schedule on every seed, with slots as with lent gradients") {
  for (const uint32_t seed : {2U, 3U, 4U}) {
    for (const bool lends : {false, true}) {
      const Step step{.units = alternating(5), .wire = 100 * kMicrosecond, .lends = lends};
      CHECK(time_of(step, seed) == overlapped(step.units, step.wire, 1));
    }
  }
}
