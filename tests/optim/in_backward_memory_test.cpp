// Tests the memory of a training whose backward updates the units (Options::optimizer_in_backward).
#include <fsdp/optim.h>

#include <set>

#include "engine/engine_parts.h"
#include "plan/placement.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("main gradients exist for one unit at a time, as planned") {
  // The root and each of the layers have another size.
  const auto make = [] { return Unit<Chain>(16, 4); };
  for (const int world : {1, 2, 3}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kZero2, Strategy::kReplicate}) {
      for (const bool offloads : {false, true}) {
        CAPTURE(world);
        CAPTURE(name_of(strategy));
        CAPTURE(offloads);
        run_torch_ranks(world, [&](Mesh mesh) {
          int64_t held[2] = {};
          std::vector<int64_t> sizes;  // of the units' main gradients
          for (const bool in_backward : {false, true}) {
            auto model = build_seeded(7, make);
            Engine engine(model, mesh,
                          {.cpu_offload = offloads,
                           .optimizer_in_backward = in_backward,
                           .strategy = strategy});
            AdamW optimizer(engine, {.skip_nonfinite = false});
            for (int step = 0; step < 3; ++step) {
              loss_of(model, batch_of(step, mesh.rank())).backward();
              optimizer.step();
              optimizer.zero_grad();
            }
            const MemoryStats stats = engine.stats().memory;
            const MemoryPlan plan = engine.memory_plan();
            CHECK(stats.held_bytes == plan.held_bytes);
            CHECK(plan.learned_bytes == 0);
            CHECK(stats.host_held_bytes == plan.host_held_bytes);
            CHECK(stats.overflow_slots == 0);
            held[in_backward] = stats.held_bytes + stats.host_held_bytes;
            if (in_backward) {
              for (const auto& unit : state_of(engine).model.units) {
                for (const int64_t bytes : unit->shard->sizes().main_gradient_slots) {
                  sizes.push_back(bytes);
                }
              }
            }
          }
          // One slot of each size remains. If gradients are captured in place, the root's gradient
          // exists together with that of another unit, which has another size here.
          int64_t all = 0, once = 0;
          std::set<int64_t> seen;
          for (const int64_t bytes : sizes) {
            all += bytes;
            if (seen.insert(bytes).second) once += bytes;
          }
          CHECK(held[false] - held[true] == all - once);
        });
      }
    }
  }
}

TEST_CASE("the peak of backward is lower by all main gradients that existed then") {
  run_torch_ranks(2, [](Mesh mesh) {
    MemoryBytes peak[2];
    int64_t reduced = 0;
    for (const bool in_backward : {false, true}) {
      auto model = build_seeded(7, [] { return Unit<Chain>(16, 4); });
      Engine engine(model, mesh, {.prefetch_units = 0, .optimizer_in_backward = in_backward});
      AdamW optimizer(engine, {.skip_nonfinite = false});
      reduced = 0;
      for (const auto& unit : state_of(engine).model.units) {
        // The peak is in the backward of block0. The root and the embedding end after it.
        const std::string& fqn = unit->shard->fqn();
        if (fqn.empty() || fqn == "embedding" || fqn == "block0") continue;
        reduced += unit->shard->sizes().main_gradient_slots.front();
      }
      for (int step = 0; step < 3; ++step) {
        const at::Tensor loss = loss_of(model, batch_of(step, mesh.rank()));
        engine.reset_peak_memory();
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      peak[in_backward] = engine.stats().memory.peak;
      CHECK(peak[in_backward].total() == engine.memory_plan().backward_peak.total());
    }
    constexpr auto kGradients = MemoryCategory::kMainGradients;
    CHECK(peak[false][kGradients] == reduced);
    CHECK(peak[true][kGradients] == 0);
    CHECK(peak[false].total() - peak[true].total() == reduced);
  });
}
