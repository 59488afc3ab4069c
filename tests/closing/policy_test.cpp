// The graphs and programs of closing, written without units: a policy finds them.
#include <fsdp/engine.h>

#include "closing/support/graph_matrix.h"
#include "closing/support/program_run.h"
#include "closing/support/random_program.h"
#include "shard/touch_trap.h"
#include "support/run_torch_ranks.h"
#include "support/torch_doctest.h"

using namespace fsdp::testing;

namespace {

fsdp::Options by_policy(fsdp::Options options = {}) {
  options.units = fsdp::by_type<Body>();
  return options;
}

}  // namespace

TEST_CASE("by policy every graph of the matrix gives equal lists and the plain model's bits") {
  int number = 0, run = 0;
  for (const MatrixGraph& graph : matrix_graphs()) {
    ++number;
    for (const Usage usage : {Usage::kAllUsed, Usage::kUnusedOnOneRank, Usage::kSkipped}) {
      for (const int prefetch : {0, 1, 2}) {
        if (!is_tried(number + static_cast<int>(usage) + prefetch, 9)) continue;
        CAPTURE(graph.name);
        CAPTURE(static_cast<int>(usage));
        CAPTURE(prefetch);
        const fsdp::Strategy strategy = kAllStrategies[run++ % std::size(kAllStrategies)];
        CAPTURE(static_cast<int>(strategy));
        CHECK(run_program(graph.make(usage), by_policy({.prefetch_units = prefetch,
                                                        .cpu_offload = run % 4 == 0,
                                                        .strategy = strategy}))
                  .failure == "");
      }
    }
  }
}

// Ranks use other weights, views and in-place changes inside the same blocks.
TEST_CASE("by policy random programs give equal lists on all ranks and the plain model's bits") {
  const auto [all, first] = fuzz_range(100);
  const int64_t wanted = is_simulated_gpu() ? all / 5 : all;
  int64_t ran = 0, invalid = 0, failed = 0;
  for (int64_t seed = first; ran < wanted && failed < 5; ++seed) {
    const Program program = random_program(static_cast<uint64_t>(seed), Boundaries::kPolicy);
    if (!is_valid(program, Boundaries::kPolicy)) {
      ++invalid;
      continue;
    }
    const ProgramRun run = run_program(
        program, by_policy({.prefetch_units = static_cast<int>(seed % 3),
                            .cpu_offload = seed % 4 == 0,
                            .strategy = kAllStrategies[seed % std::size(kAllStrategies)],
                            .cpu_streams = seed % 2 == 0 ? fsdp::CpuStreamKind::kInline
                                                         : fsdp::CpuStreamKind::kThreaded}));
    if (!run.is_finite) {
      ++invalid;
      continue;
    }
    ++ran;
    if (!run.failure.empty()) ++failed;
    CAPTURE(seed);
    const std::string text = run.failure.empty() ? "" : describe(program);
    CAPTURE(text);
    CHECK(run.failure == "");
  }
  CHECK(ran == wanted);
  CHECK(invalid < wanted / 2);
  MESSAGE(ran << " programs, " << invalid << " that plain LibTorch refuses or that overflow");
}

TEST_CASE("where operators pass unseen every program throws at its first parameter") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const auto program = std::make_shared<const Program>(random_program(seed, Boundaries::kPolicy));
    run_torch_ranks(1, [&](fsdp::Mesh mesh) {
      ProgramModel model(program, Boundaries::kPolicy);
      model.scene->plain = false;
      const fsdp::Engine engine(model.root, mesh, by_policy());
      const fsdp::touch_trap::Unseen unseen;
      CHECK_THROWS_WITH_AS(run_plan(model), doctest::Contains("is sharded and cannot be read"),
                           c10::Error);
    });
  }
}
