// Tests the graphs and programs of the closing tests without fsdp::Unit. A policy chooses the
// units.
#include <fsdp/engine.h>

#include "closing/support/graph_matrix.h"
#include "closing/support/program_reach.h"
#include "closing/support/program_run.h"
#include "closing/support/random_program.h"
#include "libtorch/touch_trap.h"
#include "support/mismatch_text.h"
#include "support/run_torch_ranks.h"
#include "support/torch_doctest.h"

using namespace fsdp::testing;

namespace {

fsdp::Options by_policy(fsdp::Options options = {}, int layers_of_unit = 1) {
  options.units = {"bodies", [=](std::string_view, const torch::nn::Module& module) {
                     return dynamic_cast<const BodyImpl*>(&module) ? layers_of_unit : 0;
                   }};
  return options;
}

constexpr int kRoot = 0, kFirst = 1, kBlock = 2, kUsed = 3, kUnused = 4;

// Makes a program with a block. The block calls one unit, computes without weights on rank 2 in
// step 1, and calls another unit without using its result. The two units are registered inside the
// parts `used_in` and `unused_in`.
Program block_around_calls(int used_in, int unused_in, bool recomputes_used = false) {
  Program program;
  const auto add_part = [&](const char* name, int parent, int inputs) {
    program.parts.push_back(
        {.name = name, .parent = parent, .weights = 1, .inputs = inputs, .ops = {}, .outputs = {}});
  };
  add_part("root", kRoot, 2);
  add_part("first", kRoot, 1);
  add_part("block", kRoot, 1);
  add_part("used", used_in, 1);
  add_part("unused", unused_in, 1);
  for (const int part : {kFirst, kUsed, kUnused}) {
    PartWriter w(program, part);
    w.returns({w.linear(0)});
  }
  PartWriter block(program, kBlock);
  const int used = recomputes_used ? block.recompute(kUsed, {0}) : block.call(kUsed, {0});
  const int result = block.linear(used, 0, program.new_gate(Gate::bit(1, 2)));
  block.call(kUnused, {0});
  block.returns({result});
  PartWriter root(program, kRoot);
  root.returns({root.call(kBlock, {root.call(kFirst, {0})})});
  return program;
}

bool ranks_agree(const Program& program, Boundaries boundaries) {
  return reach_of(program, 1, 0, boundaries).fired == reach_of(program, 1, 2, boundaries).fired;
}

// Returns the number of calls that fire in all steps, derived from the model of the graph.
// Requires: each step has one forward.
int expected_fired_calls(const Program& program) {
  int fired = 0;
  for (int step = 0; step < kProgramSteps; ++step) {
    fired += reach_of(program, step, /*rank=*/0, Boundaries::kPolicy).fired_calls;
  }
  return fired;
}

}  // namespace

TEST_CASE("by policy every graph of the matrix gives equal lists and the plain model's bits") {
  int number = 0, run = 0;
  for (const MatrixGraph& graph : matrix_graphs()) {
    ++number;
    for (const Usage usage : {Usage::kAllUsed, Usage::kUnusedOnOneRank, Usage::kSkipped}) {
      for (const int prefetch : {0, 1, 2}) {
        for (const int layers : {1, 2, 3}) {
          if (!is_tried(number + static_cast<int>(usage) + prefetch + 3 * layers, 27, 5)) continue;
          CAPTURE(graph.name);
          CAPTURE(static_cast<int>(usage));
          CAPTURE(prefetch);
          CAPTURE(layers);
          const fsdp::Strategy strategy = kAllStrategies[run++ % std::size(kAllStrategies)];
          CAPTURE(static_cast<int>(strategy));
          Program program = graph.make(usage);
          program.layers_of_unit = layers;
          CHECK(run_program(program, by_policy({.prefetch_units = prefetch,
                                                .cpu_offload = run % 4 == 0,
                                                .strategy = strategy},
                                               layers))
                    .failure == "");
        }
      }
    }
  }
}

// Inside the same units, ranks differ in weights, views and in-place changes. If a unit has several
// layers, ranks omit some of its layers.
TEST_CASE("by policy random programs give equal lists on all ranks and the plain model's bits") {
  const auto [all, first] = fuzz_range(160);
  const int64_t wanted = is_simulated_gpu() ? all / 5 : all;
  int64_t ran = 0, invalid = 0, failed = 0;
  for (int64_t seed = first; ran < wanted && failed < 5; ++seed) {
    const int layers = std::array{1, 2, 1, 3, 1, 4}[static_cast<size_t>(seed % 6)];
    const Program program =
        random_program(static_cast<uint64_t>(seed), Boundaries::kPolicy, layers);
    if (!is_valid(program, Boundaries::kPolicy)) {
      ++invalid;
      continue;
    }
    const ProgramRun run = run_program(
        program,
        by_policy({.prefetch_units = static_cast<int>(seed % 3),
                   .cpu_offload = seed % 4 == 0,
                   .strategy = kAllStrategies[seed % std::size(kAllStrategies)],
                   .tuning = {.cpu_streams = seed % 2 == 0 ? fsdp::CpuStreamKind::kInline
                                                           : fsdp::CpuStreamKind::kThreaded}},
                  layers));
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
    if (run.failure.empty() && program.plan == Plan::kOneForward) {
      CHECK(run.fired_calls == expected_fired_calls(program));
    }
  }
  CHECK(ran == wanted);
  CHECK(invalid < wanted / 2);
  MESSAGE(ran << " programs, " << invalid << " that plain LibTorch refuses or that overflow");
}

// Each of the two calls must reach the loss on all ranks (docs/closing.md, "Units by policy").
TEST_CASE("by policy a unit beside ends a block's call, and a unit inside it does not") {
  const Program inside = block_around_calls(kBlock, kBlock);
  CHECK(ranks_agree(inside, Boundaries::kPolicy));
  CHECK(run_program(inside, by_policy()).failure == "");

  const Program beside = block_around_calls(kRoot, kRoot);
  CHECK_FALSE(ranks_agree(beside, Boundaries::kPolicy));
  const std::string failure = run_program(beside, by_policy()).failure;
  CAPTURE(failure);
  CHECK(failure.find(kDisagree) != std::string::npos);

  CHECK(ranks_agree(beside, Boundaries::kUnits));
  CHECK(run_program(beside, {}).failure == "");
}

// The block's call fires at a node of the block. On rank 2 this node was made before the recomputed
// function, and on other ranks after it.
TEST_CASE("by policy a block's call fires before a function that is recomputed in it") {
  const Program program = block_around_calls(kBlock, kRoot, /*recomputes_used=*/true);
  CHECK(ranks_agree(program, Boundaries::kPolicy));
  for (const int prefetch : {0, 1, 2}) {
    CAPTURE(prefetch);
    CHECK(run_program(program, by_policy({.prefetch_units = prefetch})).failure == "");
  }
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
