// Tests several backwards before a step. The engine must plan the memory of their gradients before
// they need more.
#include <fsdp/optim.h>

#include <mutex>
#include <string>
#include <vector>

#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Accumulation {
  int backwards = 1;                              // number of backwards before a step
  GradientSync sync_before = GradientSync::kAll;  // for all backwards but the last
};

// Trains on ranks of this shape. Checks that no rank warns, and that the engine holds the bytes of
// its plan.
void check_planned(const MeshShape& shape, const Options& options, const Accumulation& by) {
  std::vector<std::string> warnings;  // rank 0's
  RunRanksOptions ranks = torch_ranks_options();
  ranks.mesh.shard = shape.shard;
  ranks.mesh.replicate = shape.replicate;
  ranks.mesh.on_event = [&](const MeshEvent& event) { warnings.push_back(event.text.what); };
  run_ranks(
      shape.size(Axis::kWorld),
      [&](Mesh mesh) {
        CAPTURE(shape.replicate);
        CAPTURE(shape.shard);
        CAPTURE(static_cast<int>(options.strategy));
        CAPTURE(static_cast<int>(options.tuning.cpu_streams));
        CAPTURE(by.backwards);
        CAPTURE(static_cast<int>(by.sync_before));
        auto model = build_seeded(7, [] { return Unit<Chain>(16, 3); });
        Engine engine(model, mesh, options);
        for (int step = 0; step < 3; ++step) {
          engine.reset_peak_memory();
          for (int i = 1; i < by.backwards; ++i) {
            const GradSync sync(engine, by.sync_before);
            loss_of(model, batch_of(step, mesh.rank())).backward();
          }
          loss_of(model, batch_of(step, mesh.rank())).backward();
          const MemoryStats memory = engine.stats().memory;
          const MemoryPlan plan = engine.memory_plan();
          if (step > 0) {
            CHECK(memory.held_bytes == plan.held_bytes);
            CHECK(memory.peak.total() == plan.peak_bytes());
            CHECK(memory.in_use[MemoryCategory::kMainGradients] ==
                  plan.after_backward[MemoryCategory::kMainGradients]);
          }
          if (by.sync_before == GradientSync::kAll) {
            CHECK(memory.overflow_slots == 0);
            CHECK(plan.learned_bytes == 0);
          }
          engine.zero_grad();
        }
      },
      ranks);
  CHECK(warnings == std::vector<std::string>{});
}

}  // namespace

TEST_CASE("accumulation is planned before it takes more, in every strategy, to the byte") {
  const MeshShape shapes[] = {{1, 1}, {1, 3}, {2, 2}, {4, 1}};
  for (const MeshShape& shape : shapes) {
    for (const Strategy strategy : kAllStrategies) {
      for (const CpuStreamKind streams : every_stream_kind()) {
        for (const int backwards : {1, 2, 3}) {
          const Options options{.strategy = strategy, .tuning = {.cpu_streams = streams}};
          check_planned(shape, options, {.backwards = backwards});
          check_planned(shape, options,
                        {.backwards = backwards, .sync_before = GradientSync::kNone});
          check_planned(shape, options,
                        {.backwards = backwards, .sync_before = GradientSync::kInside});
        }
      }
    }
  }
}

TEST_CASE("accumulation is planned where gradients travel in bf16, and with main state elsewhere") {
  for (const Strategy strategy : kAllStrategies) {
    for (const int backwards : {2, 3}) {
      check_planned({2, 2},
                    {.mixed_precision = {.reduce_dtype = torch::kBFloat16}, .strategy = strategy},
                    {.backwards = backwards});
      check_planned({2, 2}, {.cpu_offload = true, .strategy = strategy}, {.backwards = backwards});
    }
  }
}
