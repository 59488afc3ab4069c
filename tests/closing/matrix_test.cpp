#include "closing/support/graph_matrix.h"
#include "closing/support/program_reach.h"
#include "closing/support/program_run.h"
#include "support/run_torch_ranks.h"
#include "support/torch_doctest.h"

using namespace fsdp::testing;

TEST_CASE("every graph of the matrix gives equal lists and the plain model's bits, in every row") {
  int number = 0, run = 0;
  for (const MatrixGraph& graph : matrix_graphs()) {
    ++number;
    for (const Usage usage : {Usage::kAllUsed, Usage::kUnusedOnOneRank, Usage::kSkipped}) {
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(number + static_cast<int>(usage) + prefetch, 3, 3)) continue;
        CAPTURE(graph.name);
        CAPTURE(static_cast<int>(usage));
        CAPTURE(prefetch);
        for (const auto streams : every_stream_kind()) {
          CAPTURE(static_cast<int>(streams));
          const fsdp::Strategy strategy = kAllStrategies[run++ % std::size(kAllStrategies)];
          CAPTURE(static_cast<int>(strategy));
          const fsdp::Options options{.prefetch_units = prefetch,
                                      .cpu_offload = run % 4 == 0,
                                      .strategy = strategy,
                                      .tuning = {.cpu_streams = streams}};
          CAPTURE(options.cpu_offload);
          CHECK(run_program(graph.make(usage), options).failure == "");
        }
      }
    }
  }
}

TEST_CASE("no graph of the matrix seats, gathers or reduces more than it needs") {
  for (const MatrixGraph& graph : matrix_graphs()) {
    CAPTURE(graph.name);
    const ProgramRun run = run_program(graph.make(Usage::kAllUsed), {.prefetch_units = 0});
    REQUIRE(run.failure == "");
    CHECK(run.bound == graph.bound);
    CHECK(run.gathers == graph.gathers);
    CHECK(run.reduces == graph.reduces);
  }
}

TEST_CASE("no graph of the matrix fires a call on some ranks only") {
  for (const MatrixGraph& graph : matrix_graphs()) {
    for (const Usage usage : {Usage::kAllUsed, Usage::kUnusedOnOneRank, Usage::kSkipped}) {
      const Program program = graph.make(usage);
      for (int step = 0; step < kProgramSteps; ++step) {
        CAPTURE(graph.name);
        CAPTURE(step);
        const Reach first = reach_of(program, step, 0);
        CHECK(first.loss_requires_grad);
        CHECK_FALSE(first.changes_passed_through);
        for (int rank = 1; rank < kProgramRanks; ++rank) {
          CHECK(reach_of(program, step, rank).fired == first.fired);
        }
      }
    }
  }
}
