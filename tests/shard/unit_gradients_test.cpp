#include "shard/unit_gradients.h"

#include "fsdp/error.h"
#include "shard/support/unit_under_test.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns the gradient of a parameter on rank `rank` in micro-batch `micro`. Sums are exact, in
// bfloat16 too.
float found(int rank, int parameter, int micro) {
  return static_cast<float>(8 * (rank + 1) + 2 * parameter + 64 * micro);
}
float sum_of(int world, int parameter, int micro) {
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += found(rank, parameter, micro);
  return sum;
}

void capture(ShardUnit& unit, int parameter, float value) {
  const ParameterSpec& spec = unit.layout().parameters()[parameter];
  unit.gradients().capture(parameter, torch::full(spec.shape, value));
}

// Runs one micro-batch on a rank. If `second` is false, only the first parameter gets a gradient.
void pass(ShardUnit& unit, int rank, int micro, bool reduces, bool second = true) {
  unit.gradients().open(reduces ? GradientSync::kAll : GradientSync::kNone);
  capture(unit, 0, found(rank, 0, micro));
  if (second) capture(unit, 1, found(rank, 1, micro));
  reduces ? unit.gradients().reduce(/*across=*/true) : unit.gradients().keep();
}

// Checks that all elements of each parameter in this rank's main gradient equal
// `expected[parameter]`. Gaps must be zero.
void check_main(ShardUnit& unit, std::vector<float> expected) {
  const std::vector<MainSegment> segments = unit.main_segments();
  REQUIRE(segments.size() == 1);
  REQUIRE(segments[0].grad != nullptr);
  std::vector<float> whole(segments[0].numel, 0);
  for (const PlacedParameter& placed : unit.layout().segments()[segments[0].segment].parameters) {
    const Interval& local = unit.main().local(placed.parameter);
    std::fill_n(whole.begin() + local.offset, local.numel, expected[placed.parameter]);
  }
  CHECK(values_of(segments[0].grad, segments[0].numel) == whole);
}

template <class Body>
void on_every_row(Body body) {
  for (const Strategy strategy : kStrategies) {
    for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const auto streams : every_stream_kind()) {
        for (const int world : {1, 2, 3}) {
          CAPTURE(name_of(strategy));
          CAPTURE(name_of(reduce_dtype));
          CAPTURE(world);
          run_torch_ranks(world, [&](Mesh mesh) {
            UnitUnderTest test(mesh,
                               {.mixed_precision = {.reduce_dtype = scalar_type_of(reduce_dtype)},
                                .strategy = strategy,
                                .gradient_reduction = GradientReduction::kSum,
                                .debug = true,
                                .tuning = {.cpu_streams = streams}});
            const auto unit = test.unit();
            body(*unit, test.shared);
            unit->gradients().zero();
            test.shared.streams.finish();
            CHECK(test.shared.memory.ledger.stats().in_use[MemoryCategory::kMainGradients] == 0);
            CHECK(test.shared.memory.ledger.stats().in_use[MemoryCategory::kReduceSlots] == 0);
          });
        }
      }
    }
  }
}

void settle(ShardContext& shared) {
  shared.streams.gather->synchronize();
  shared.streams.reduce->synchronize();
}

}  // namespace

TEST_CASE("what the ranks capture is summed, and later passes add to it") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int world = shared.mesh.world_size(), rank = shared.mesh.rank();
    pass(unit, rank, 0, true);
    settle(shared);
    check_main(unit, {sum_of(world, 0, 0), sum_of(world, 1, 0), 0});
    pass(unit, rank, 1, true);
    settle(shared);
    check_main(unit, {sum_of(world, 0, 0) + sum_of(world, 0, 1),
                      sum_of(world, 1, 0) + sum_of(world, 1, 1), 0});
    CHECK(shared.comms.reduces == 2);
  });
}

TEST_CASE("kept gradients wait for the pass that reduces, and are reduced once") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int world = shared.mesh.world_size(), rank = shared.mesh.rank();
    pass(unit, rank, 0, false);
    pass(unit, rank, 1, false, /*second=*/false);
    pass(unit, rank, 0, true);
    settle(shared);
    check_main(unit, {2 * sum_of(world, 0, 0) + sum_of(world, 0, 1), 2 * sum_of(world, 1, 0), 0});
    CHECK(unit.gradients().state() == GradientState::kNone);
    if (world > 1) CHECK(shared.comms.reduces == 1);
  });
}

TEST_CASE("a gradient that does not arrive is zero, in whatever memory it would have had") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int world = shared.mesh.world_size(), rank = shared.mesh.rank();
    for (int step = 0; step < 2; ++step) {
      pass(unit, rank, 0, true, /*second=*/rank == 0);
      settle(shared);
      check_main(unit, {sum_of(world, 0, 0), found(0, 1, 0), 0});
      unit.gradients().zero();
    }
  });
}

TEST_CASE("what a failed backward has captured goes; where it cannot be told apart, use throws") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int world = shared.mesh.world_size(), rank = shared.mesh.rank();
    unit.gradients().open(GradientSync::kAll);
    capture(unit, 0, 1);
    unit.gradients().abandon();
    pass(unit, rank, 0, true);
    settle(shared);
    check_main(unit, {sum_of(world, 0, 0), sum_of(world, 1, 0), 0});
    unit.gradients().open(GradientSync::kAll);
    capture(unit, 0, 1);
    unit.gradients().abandon();
    CHECK_THROWS_WITH_AS(unit.main_segments(),
                         doctest::Contains("mixed with gradients of another backward"), StateError);
    CHECK_THROWS_AS(unit.gradients().open(GradientSync::kAll), StateError);
    unit.gradients().zero();
    pass(unit, rank, 0, true);
    settle(shared);
    check_main(unit, {sum_of(world, 0, 0), sum_of(world, 1, 0), 0});
  });
}

TEST_CASE("users' `.grad` counts: replaced, cleared, or all cleared") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int world = shared.mesh.world_size(), rank = shared.mesh.rank();
    const std::vector<at::Tensor> views = unit.local_views();
    pass(unit, rank, 0, true);
    REQUIRE(views[0].grad().defined());
    CHECK_FALSE(views[2].grad().defined());  // frozen
    views[0].mutable_grad() = torch::full_like(views[0].detach(), 5);
    views[1].mutable_grad() = at::Tensor();
    check_main(unit, {5, 0, 0});
    pass(unit, rank, 0, true);
    settle(shared);
    check_main(unit, {5 + sum_of(world, 0, 0), sum_of(world, 1, 0), 0});
    for (const at::Tensor& view : views) view.mutable_grad() = at::Tensor();
    CHECK(unit.main_segments()[0].grad == nullptr);
  });
}

TEST_CASE(
    "who clears every `.grad` clears kept gradients, also before the pass that reduces them") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int rank = shared.mesh.rank();
    const std::vector<at::Tensor> views = unit.local_views();
    pass(unit, rank, 0, true);
    pass(unit, rank, 1, false);
    settle(shared);
    for (const at::Tensor& view : views) view.mutable_grad() = at::Tensor();
    unit.gradients().reduce(/*across=*/true);  // as for a unit that the next pass does not reach
    CHECK(unit.gradients().state() == GradientState::kNone);
    CHECK(unit.main_segments()[0].grad == nullptr);
  });
}

TEST_CASE("gradients lie as they come: transposed, in a lower type, conjugate signs, none at all") {
  on_every_row([](ShardUnit& unit, ShardContext& shared) {
    const int world = shared.mesh.world_size();
    unit.gradients().open(GradientSync::kAll);
    const at::Tensor counted = torch::arange(15).reshape({5, 3}).to(torch::kFloat).t();
    unit.gradients().capture(0, counted);
    unit.gradients().capture(0, counted.to(torch::kBFloat16));
    unit.gradients().capture(1, torch::_neg_view(torch::full({130}, 2.0F)));
    unit.gradients().capture(1, at::Tensor());
    CHECK_THROWS_WITH_AS(
        unit.gradients().capture(1, torch::ones({130}, torch::kLong)),
        doctest::Contains("the gradient of parameter 'b' is sparse or of type Long"),
        InvalidArgument);
    unit.gradients().reduce(/*across=*/true);
    settle(shared);
    const MainSegment segment = unit.main_segments()[0];
    const at::Tensor expected = counted.contiguous().flatten() * 2 * world;
    for (const int parameter : {0, 1}) {
      const Interval& interval = unit.main().local(parameter);
      const std::vector<float> found = values_of(segment.grad, segment.numel);
      for (int64_t i = 0; i < interval.numel; ++i) {
        const float value = interval.parameter == 0 ? expected[interval.begin + i].item<float>()
                                                    : -2.0F * static_cast<float>(world);
        CHECK(found[interval.offset + i] == value);
      }
    }
  });
}

// More gradients arrive than a GPU collects before a copy. One of them arrives twice before it is
// copied.
TEST_CASE("many small gradients are copied as they came") {
  constexpr int kParameters = GradientTable::kMost + 7;
  run_torch_ranks(2, [&](Mesh mesh) {
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kParameters; ++i) {
      specs.push_back({.fqn = "p" + std::to_string(i), .shape = {3}, .strides = {1}, .numel = 3});
    }
    UnitUnderTest test(mesh, {.gradient_reduction = GradientReduction::kSum}, std::move(specs));
    const auto unit = test.unit();
    for (const bool reduces : {false, true}) {
      unit->gradients().open(reduces ? GradientSync::kAll : GradientSync::kNone);
      capture(*unit, 1, 1);
      for (int i = 0; i < kParameters; ++i) capture(*unit, i, static_cast<float>(i));
      reduces ? unit->gradients().reduce(/*across=*/true) : unit->gradients().keep();
    }
    settle(test.shared);
    std::vector<float> expected;
    for (int i = 0; i < kParameters; ++i) expected.push_back(static_cast<float>(2 * 2 * i));
    expected[1] += 2 * 2;
    check_main(*unit, expected);
  });
}

TEST_CASE("a gradient that is changed in place while it waits is refused, where gradients wait") {
  run_torch_ranks(2, [&](Mesh mesh) {
    UnitUnderTest test(mesh, {.gradient_reduction = GradientReduction::kSum});
    const auto unit = test.unit();
    unit->gradients().open(GradientSync::kAll);
    at::Tensor gradient = torch::full({130}, 3.0F);
    unit->gradients().capture(1, gradient);
    gradient.mul_(2);
    capture(*unit, 0, 1);
    if (!test.shared.streams.compute->is_inline()) {
      CHECK_THROWS_WITH_AS(
          unit->gradients().reduce(/*across=*/true),
          "the gradient of parameter 'b' was changed in place after autograd computed it (unit "
          "'layers.0'); the engine copies small gradients of a unit together, at the end of the "
          "unit's backward; hint: let hooks return a new tensor instead",
          StateError);
      unit->gradients().abandon();
      pass(*unit, mesh.rank(), 0, true);
      settle(test.shared);
      return check_main(*unit, {sum_of(2, 0, 0), sum_of(2, 1, 0), 0});
    }
    unit->gradients().reduce(/*across=*/true);
    settle(test.shared);
    check_main(*unit, {2, 6, 0});
  });
}

TEST_CASE("a large gradient that nobody else holds is sent from where it was made") {
  for (const Strategy strategy : kStrategies) {
    CAPTURE(name_of(strategy));
    run_torch_ranks(2, [&](Mesh mesh) {
      const int64_t numel = GradientPlaces::kLentBytes / 4 + 100;
      UnitUnderTest test(mesh,
                         {.strategy = strategy, .gradient_reduction = GradientReduction::kSum},
                         {{.fqn = "large", .shape = {numel}, .strides = {1}, .numel = numel},
                          {.fqn = "b", .shape = {130}, .strides = {1}, .numel = 130}});
      const auto unit = test.unit();
      const bool lends = strategy == Strategy::kFullShard || strategy == Strategy::kZero2;
      if (lends) CHECK(unit->sizes().reduce_slot_bytes < GradientPlaces::kLentBytes / 8);
      if (!lends) CHECK(unit->sizes().captures_in_place);
      for (const bool sole : {true, false}) {
        unit->gradients().open(GradientSync::kAll);
        at::Tensor gradient = torch::full({numel}, 3.0F);
        const at::Tensor other = sole ? at::Tensor() : gradient;
        unit->gradients().capture(0, gradient);
        CHECK(gradient.use_count() == (lends && sole ? 2 : (sole ? 1 : 2)));
        unit->gradients().capture(1, torch::ones({130}));
        gradient.reset();
        unit->gradients().reduce(/*across=*/true);
        settle(test.shared);
        check_main(*unit, {6, 2});
        unit->gradients().zero();
      }
    });
  }
}
