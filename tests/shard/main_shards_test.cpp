#include "shard/main_shards.h"

#include "shard/support/unit_under_test.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("slices, their places and the whole are one another's, for every number of ranks") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    for (const int world : {1, 2, 3, 5}) {
      run_torch_ranks(world, [&](Mesh mesh) {
        UnitUnderTest test(mesh, {.strategy = strategy});
        const UnitContext context = test.context();
        MainShards main(context, test.slices());
        for (int p = 0; p < 3; ++p) {
          const Interval& local = main.local(p);
          const std::vector<float> data =
              values_of(main.data(test.layout.segment_of(p)) + local.offset, local.numel);
          for (int64_t i = 0; i < local.numel; ++i) {
            CHECK(data[i] == whole_value(p, local.begin + i));
          }
        }
        std::vector<Buffer> whole;
        main.copy_whole(whole);
        for (int p = 0; p < 3; ++p) {
          const PlacedParameter& place = test.layout.place_of(p);
          const std::vector<float> data =
              values_of(static_cast<float*>(whole[test.layout.segment_of(p)].data()) + place.offset,
                        place.numel);
          for (int64_t i = 0; i < place.numel; ++i) {
            CHECK(data[i] == whole_value(p, i));
          }
        }
        CHECK(test.shared.memory.ledger.stats().in_use[MemoryCategory::kMainShards] ==
              test.layout.slice_numel() * 4);
      });
    }
  }
}

TEST_CASE("every way of writing is a change once, and none that was kept") {
  run_torch_ranks(2, [](Mesh mesh) {
    UnitUnderTest test(mesh);
    const UnitContext context = test.context();
    MainShards main(context, test.slices());
    CHECK_FALSE(main.sync_changes());
    on_device(main.data(0), 1).add_(1);  // without a call of mark_changed
    CHECK_FALSE(main.sync_changes());
    main.mark_changed();
    CHECK(main.sync_changes());
    CHECK_FALSE(main.sync_changes());
    const std::vector<at::Tensor> views = main.views();
    const torch::NoGradGuard no_grad;
    views[1].add_(1);
    CHECK(main.sync_changes());
    // This write does not increment a version. Rank 0 holds only the beginning of 'b'.
    views[1].data().add_(1);
    CHECK(main.sync_changes() == (main.local(1).numel > 0));
    CHECK_FALSE(main.sync_changes());
    views[1].add_(1);
    main.keep_writes();
    CHECK_FALSE(main.sync_changes());
  });
}

TEST_CASE("views are kept while somebody holds one, or a view of one") {
  run_torch_ranks(1, [](Mesh mesh) {
    UnitUnderTest test(mesh);
    const UnitContext context = test.context();
    MainShards main(context, test.slices());
    {
      const at::Tensor held = main.views()[0];
      main.forget_unused_views();
      CHECK(main.has_views());
    }
    {
      const at::Tensor part = main.views()[1].slice(0, 1, 2);
      main.forget_unused_views();
      CHECK(main.has_views());
    }
    main.forget_unused_views();
    CHECK_FALSE(main.has_views());
    CHECK(main.views()[0].requires_grad());
    CHECK_FALSE(main.views()[2].requires_grad());
  });
}

TEST_CASE("a slice that moves takes its values along, and its views outlive everything") {
  at::Tensor view;
  run_torch_ranks(1, [&](Mesh mesh) {
    UnitUnderTest test(mesh);
    const UnitContext context = test.context();
    MainShards main(context, test.slices());
    auto other =
        std::make_shared<const MeshBuffer>(mesh, test.shared.memory.allocate(main.bytes(0) + 64));
    void* place = other->buffer.at(64);
    main.relocate(0, std::move(other), place);
    CHECK(main.data(0) == place);
    CHECK_FALSE(main.sync_changes());
    view = main.views()[0];
  });
  CHECK(view[14].item<float>() == whole_value(0, 14));
}
