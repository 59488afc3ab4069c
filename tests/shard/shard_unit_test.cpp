#include "shard/shard_unit.h"

#include "fsdp/error.h"
#include "shard/support/unit_under_test.h"
#include "support/simulated_mesh.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("sizes are what a step takes, in every row") {
  for (const Strategy strategy : kStrategies) {
    for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int world : {1, 2, 3}) {
        CAPTURE(name_of(strategy));
        CAPTURE(world);
        run_torch_ranks(world, [&](Mesh mesh) {
          UnitUnderTest test(mesh,
                             {.mixed_precision = {.reduce_dtype = scalar_type_of(reduce_dtype)},
                              .strategy = strategy});
          const auto unit = test.unit();
          const UnitSizes sizes = unit->sizes();
          const MemoryBytes& now = test.shared.memory.ledger.stats().in_use;
          REQUIRE(sizes.main_gradient_slots.size() == 1);
          CHECK(now[MemoryCategory::kMainShards] == sizes.main_shard_bytes);
          unit->gradients().open(GradientSync::kAll);
          unit->gradients().capture(1, torch::ones({130}));
          CHECK(now[MemoryCategory::kReduceSlots] == sizes.reduce_slot_bytes);
          CHECK(now[MemoryCategory::kMainGradients] ==
                (sizes.captures_in_place ? sizes.main_gradient_slots[0] : 0));
          unit->gradients().reduce(/*across=*/true);
          CHECK(now[MemoryCategory::kReduceSlots] == 0);
          CHECK(now[MemoryCategory::kMainGradients] == sizes.main_gradient_slots[0]);
          unit->gradients().zero();
          unit->gradients().open(GradientSync::kNone);
          unit->gradients().capture(1, torch::ones({130}));
          unit->gradients().keep();
          CHECK(now[MemoryCategory::kReduceSlots] == sizes.kept_gradient_bytes);
          unit->gradients().zero();
        });
      }
    }
  }
}

TEST_CASE("a segment that was frozen has gradients once it is unfrozen, between steps only") {
  run_torch_ranks(2, [](Mesh mesh) {
    UnitUnderTest test(mesh);
    const auto unit = test.unit();
    const std::vector<at::Tensor> views = unit->local_views();
    unit->tensors()[2].set_requires_grad(true);
    unit->gradients().open(GradientSync::kAll);
    unit->gradients().capture(0, torch::ones({3, 5}));
    unit->gradients().reduce(/*across=*/true);
    CHECK_THROWS_WITH_AS(unit->unfreeze(2), doctest::Contains("while gradients wait for a step"),
                         StateError);
    unit->gradients().zero();
    unit->unfreeze(2);
    CHECK(views[2].requires_grad());
    CHECK(unit->sizes().main_gradient_slots.size() == 2);
    unit->gradients().open(GradientSync::kAll);
    unit->gradients().capture(2, torch::full({7}, 4.0F));
    unit->gradients().reduce(/*across=*/true);
    const std::vector<MainSegment> segments = unit->main_segments();
    REQUIRE(segments.size() == 2);
    const Interval& local = unit->main().local(2);
    CHECK(values_of(segments[1].grad + local.offset, local.numel) ==
          std::vector<float>(static_cast<size_t>(local.numel), 4.0F));
    unit->gradients().zero();
  });
}

TEST_CASE("ranks gather alike although only one of them sees a write that has no version") {
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero1}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      UnitUnderTest test(mesh, {.strategy = strategy});
      const auto unit = test.unit();
      const auto gathers = [&] {
        const int64_t before = test.shared.comms.all_gathers;
        unit->parameters().unshard(Urgency::kDemand);
        unit->parameters().wait_for_unshard();
        unit->parameters().reshard();
        return test.shared.comms.all_gathers - before;
      };
      unit->sync_changes(/*rebinds=*/true);
      CHECK(gathers() == 1);
      if (mesh.rank() == 1) {
        const torch::NoGradGuard no_grad;
        unit->local_views()[1].data().add_(1);
      } else {
        unit->local_views();
      }
      unit->sync_changes(/*rebinds=*/false);  // as at a backward, when no view exists any more
      CHECK(gathers() == 0);
      unit->sync_changes(/*rebinds=*/true);
      CHECK(gathers() == 1);
    });
  }
}

TEST_CASE("a change at a forward reseats, one at a backward only tells graphs") {
  run_torch_ranks(2, [](Mesh mesh) {
    UnitUnderTest test(mesh);
    const auto unit = test.unit();
    unit->parameters().unshard(Urgency::kDemand);
    unit->parameters().wait_for_unshard();
    const int64_t version = torch_compat::version(unit->tensors()[0]);
    unit->mark_changed(/*copies_written=*/false);
    unit->sync_changes(/*rebinds=*/false);
    CHECK(torch_compat::version(unit->tensors()[0]) == version + 1);
    CHECK(unit->parameters().state() == ParameterState::kUnsharded);
    unit->sync_changes(/*rebinds=*/true);  // was already synced
    CHECK(unit->parameters().state() == ParameterState::kUnsharded);
    unit->mark_changed(/*copies_written=*/false);
    unit->sync_changes(/*rebinds=*/true);
    CHECK(unit->parameters().state() == ParameterState::kSharded);
  });
}
