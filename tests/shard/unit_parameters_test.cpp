#include "shard/unit_parameters.h"

#include "fsdp/error.h"
#include "shard/support/unit_under_test.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

void unshard_and_wait(ShardContext& shared, ShardUnit& unit) {
  shared.streams.gather_after_compute();  // a pass does this when it begins
  unit.parameters().unshard(Urgency::kDemand);
  unit.parameters().wait_for_unshard();
}

void check_shows(ShardUnit& unit, float added = 0) {
  for (int p = 0; p < 3; ++p) CHECK(shows(unit.tensors()[p], p, added));
}

// Adds to all elements of the main shards and to their gaps, as an optimizer does.
void add_to_main(ShardUnit& unit, float added) {
  for (size_t s = 0; s < unit.layout().segments().size(); ++s) {
    on_device(unit.main().data(static_cast<int>(s)), unit.layout().segments()[s].slice_numel)
        .add_(added);
  }
  unit.mark_changed(/*copies_written=*/false);
}

}  // namespace

TEST_CASE("unsharded parameters show the main shards of all ranks, from every source") {
  for (const Strategy strategy : kStrategies) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const auto streams : every_stream_kind()) {
        for (const int world : {1, 2, 3, 5}) {
          CAPTURE(name_of(strategy));
          CAPTURE(world);
          run_torch_ranks(world, [&](Mesh mesh) {
            UnitUnderTest test(
                mesh, {.strategy = strategy, .debug = true, .tuning = {.cpu_streams = streams}},
                unit_specs(dtype));
            const auto unit = test.unit();
            unshard_and_wait(test.shared, *unit);
            check_shows(*unit);
            unit->parameters().reshard();
            CHECK_THROWS_WITH(unit->tensors()[0].sum(),
                              doctest::Contains("'a' of unit 'layers.0'"));
            add_to_main(*unit, 1);
            unit->sync_changes(/*rebinds=*/true);
            unshard_and_wait(test.shared, *unit);
            check_shows(*unit, 1);
            unit->parameters().reshard();
          });
        }
      }
    }
  }
}

TEST_CASE("what each source gathers: at each use, after a change, never") {
  for (const Strategy strategy : kStrategies) {
    CAPTURE(name_of(strategy));
    run_torch_ranks(2, [&](Mesh mesh) {
      UnitUnderTest test(mesh, {.strategy = strategy});
      const auto unit = test.unit();
      const bool each_use = strategy == Strategy::kFullShard;
      const bool each_change = strategy == Strategy::kZero2 || strategy == Strategy::kZero1;
      std::vector<int64_t> gathers;
      for (const bool changes : {false, false, true, false}) {
        if (changes) add_to_main(*unit, 1);
        unit->sync_changes(/*rebinds=*/true);
        const int64_t before = test.shared.comms.all_gathers;
        unshard_and_wait(test.shared, *unit);
        unit->parameters().reshard();
        gathers.push_back(test.shared.comms.all_gathers - before);
      }
      CHECK(gathers == (each_use      ? std::vector<int64_t>{1, 1, 1, 1}
                        : each_change ? std::vector<int64_t>{1, 0, 1, 0}
                                      : std::vector<int64_t>{0, 0, 0, 0}));
      // Views exist now. So a rank cannot know whether other ranks have written through their
      // views.
      const std::vector<at::Tensor> views = unit->local_views();
      unit->sync_changes(/*rebinds=*/true);
      const int64_t before = test.shared.comms.all_gathers;
      unshard_and_wait(test.shared, *unit);
      unit->parameters().reshard();
      CHECK(test.shared.comms.all_gathers - before == (each_use || each_change ? 1 : 0));
    });
  }
}

TEST_CASE("bytes kept and borrowed are what the ledger counts") {
  for (const Strategy strategy : kStrategies) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      CAPTURE(name_of(strategy));
      CAPTURE(name_of(dtype));
      run_torch_ranks(2, [&](Mesh mesh) {
        UnitUnderTest test(mesh, {.strategy = strategy}, unit_specs(dtype));
        const auto unit = test.unit();
        const MemoryBytes& now = test.shared.memory.ledger.stats().in_use;
        int64_t whole = 0;
        for (const SegmentLayout& segment : test.layout.segments()) whole += segment.bytes();
        const int64_t main = test.layout.slice_numel() * 4;
        const bool cut = strategy == Strategy::kFullShard;
        const bool resident = strategy == Strategy::kZero2 || strategy == Strategy::kZero1;
        const int64_t expected = cut                         ? 0
                                 : dtype == DType::kBFloat16 ? whole
                                 : resident                  ? whole - main
                                                             : 0;
        CHECK(now[MemoryCategory::kResidentParameters] == expected);
        CHECK(unit->sizes().resident_bytes == expected);
        CHECK(test.shared.memory.ledger.stats().held_bytes == expected + main);
        unit->parameters().unshard(Urgency::kDemand);
        CHECK(now[MemoryCategory::kParameterSlots] == unit->sizes().parameter_slot_bytes);
        CHECK((now[MemoryCategory::kParameterSlots] > 0) == cut);
        unit->parameters().reshard();
        CHECK(now[MemoryCategory::kParameterSlots] == 0);
      });
    }
  }
}

TEST_CASE(
    "a transition out of turn names both states, and a prefetch beyond the plan does nothing") {
  run_torch_ranks(2, [](Mesh mesh) {
    UnitUnderTest test(mesh);
    const auto unit = test.unit();
    UnitParameters& parameters = unit->parameters();
    CHECK_THROWS_WITH_AS(parameters.reshard(),
                         doctest::Contains("is sharded, expected a unit that is unsharded"),
                         StateError);
    CHECK_THROWS_WITH_AS(parameters.wait_for_unshard(),
                         doctest::Contains("is sharded, expected a unit that is gathering"),
                         StateError);
    CHECK_FALSE(parameters.unshard(Urgency::kPrefetch));
    CHECK(parameters.state() == ParameterState::kSharded);
    CHECK(parameters.unshard(Urgency::kDemand));
    CHECK_THROWS_WITH_AS(parameters.unshard(Urgency::kDemand),
                         doctest::Contains("is gathering, expected a unit that is sharded"),
                         StateError);
    parameters.reshard();  // nothing waits for this gather
    unshard_and_wait(test.shared, *unit);
    check_shows(*unit);
    parameters.reshard();
  });
}

TEST_CASE("written values go back: each rank's own slice, or rank 0's") {
  for (const Strategy strategy : kStrategies) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool from_zero : {false, true}) {
        CAPTURE(name_of(strategy));
        CAPTURE(from_zero);
        run_torch_ranks(3, [&](Mesh mesh) {
          UnitUnderTest test(mesh, {.strategy = strategy}, unit_specs(dtype));
          const auto unit = test.unit();
          unit->parameters().unshard_own_copy();
          unit->parameters().wait_for_unshard();
          CHECK(unit->parameters().first_written().empty());
          const torch::NoGradGuard no_grad;
          // If the gather uses rank 0's values, writes of other ranks have no effect.
          const float added = from_zero && mesh.rank() != 0 ? 50.0F : 1.0F;
          unit->tensors()[1].add_(added);
          CHECK(unit->parameters().first_written() == "b");
          unit->parameters().write_back(from_zero);
          unit->parameters().reshard();
          unit->sync_changes(/*rebinds=*/true);
          unshard_and_wait(test.shared, *unit);
          CHECK(shows(unit->tensors()[0], 0));
          CHECK(shows(unit->tensors()[1], 1, 1));
          unit->parameters().reshard();
        });
      }
    }
  }
}

TEST_CASE("only parameters seated on the main shards themselves keep what is written to them") {
  for (const int world : {1, 2}) {
    for (const Strategy strategy : kStrategies) {
      CAPTURE(name_of(strategy));
      run_torch_ranks(world, [&](Mesh mesh) {
        UnitUnderTest test(mesh, {.strategy = strategy});
        const auto unit = test.unit();
        unshard_and_wait(test.shared, *unit);
        const bool keeps = world == 1 || strategy == Strategy::kReplicate;
        CHECK(unit->parameters().keeps_writes() == keeps);
        if (keeps) {
          const torch::NoGradGuard no_grad;
          unit->tensors()[0].add_(1);
          unit->parameters().take_kept_writes();
          CHECK(unit->parameters().first_written().empty());
          CHECK(values_of(unit->main().data(0) + unit->main().local(0).offset, 1)[0] ==
                whole_value(0, 0) + 1);
        }
        unit->parameters().reshard();
      });
    }
  }
}

TEST_CASE("a resident copy that was written with the main shards is not made again") {
  run_torch_ranks(1, [](Mesh mesh) {
    UnitUnderTest test(mesh, {}, unit_specs(DType::kBFloat16));
    const auto unit = test.unit();
    const std::vector<MainSegment> segments = unit->main_segments();
    REQUIRE(segments.size() == 1);  // the optimizer does not update the frozen segment
    void* copy = segments[0].resident_copy;
    REQUIRE(copy != nullptr);
    const at::Tensor first = torch_compat::wrap(copy, 1, DType::kBFloat16, at::kCPU);
    first.fill_(7);  // differs from the main shard, and must be kept
    unit->mark_changed(/*copies_written=*/true);
    unit->sync_changes(/*rebinds=*/true);
    CHECK(first.item<float>() == 7.0F);
    unit->mark_changed(/*copies_written=*/false);
    unit->mark_changed(/*copies_written=*/true);  // the earlier change has not been copied yet
    unit->sync_changes(/*rebinds=*/true);
    CHECK(first.item<float>() == whole_value(0, 0));
  });
}
