// Tests the memory plan for every graph of the closing matrix, also for recomputed graphs.
#include <fsdp/engine.h>

#include "closing/support/graph_matrix.h"
#include "closing/support/program_run.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE(
    "from the second step on every graph of the matrix uses what the plan says, to the byte") {
  int number = 0;
  for (const MatrixGraph& graph : matrix_graphs()) {
    ++number;
    const auto program = std::make_shared<const Program>(graph.make(Usage::kAllUsed));
    for (const int prefetch : {0, 1, 2}) {
      if (!is_tried(number + prefetch, 3)) continue;
      run_torch_ranks(2, [&](Mesh mesh) {
        ProgramModel model(program);
        model.scene->plain = false;
        model.scene->rank = mesh.rank();
        Engine engine(model.root, mesh, {.prefetch_units = prefetch, .debug = true});
        int64_t overflows = 0;
        int64_t allocations = 0;
        for (int step = 0; step < 4; ++step) {
          CAPTURE(graph.name);
          CAPTURE(prefetch);
          CAPTURE(step);
          model.scene->step = 0;
          engine.reset_peak_memory();
          run_plan(model);
          const MemoryStats used = engine.stats().memory;
          const MemoryPlan plan = engine.memory_plan();
          if (step > 0) {
            CHECK(used.peak.total() == plan.peak_bytes());
            CHECK(used.in_use.total() == plan.after_backward.total());
            CHECK(used.held_bytes == plan.held_bytes);
            CHECK(used.overflow_slots == overflows);
            if (step > 1) CHECK(used.system_allocations == allocations);
          }
          overflows = used.overflow_slots;
          allocations = used.system_allocations;
          engine.zero_grad();
        }
      });
    }
  }
}
