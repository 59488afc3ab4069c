#include <fsdp/optim.h>

#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

void check_equal(const MemoryBytes& measured, const MemoryBytes& planned, const char* phase) {
  CAPTURE(phase);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    CAPTURE(name_of(category));
    CHECK(measured[category] == planned[category]);
  }
}

// Runs three steps and compares each phase with the plan.
void check_steps(
    const Mesh& mesh, const Options& options,
    const std::function<Unit<Chain>()>& make = [] { return Unit<Chain>(16, 4); }) {
  auto model = build_seeded(7, make);
  Engine engine(model, mesh, options);
  AdamW optimizer(engine, {.lr = 1e-3});
  check_equal(engine.stats().memory.in_use, engine.memory_plan().rest, "after construction");
  int64_t system_allocations = 0;
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    engine.reset_peak_memory();
    const at::Tensor loss = loss_of(model, batch_of(step, mesh.rank()));
    check_equal(engine.stats().memory.peak, engine.memory_plan().forward_peak, "forward peak");
    check_equal(engine.stats().memory.in_use, engine.memory_plan().after_forward, "after forward");
    engine.reset_peak_memory();
    loss.backward();
    check_equal(engine.stats().memory.peak, engine.memory_plan().backward_peak, "backward peak");
    check_equal(engine.stats().memory.in_use, engine.memory_plan().after_backward,
                "after backward");
    engine.reset_peak_memory();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    check_equal(engine.stats().memory.peak, engine.memory_plan().after_backward, "step");
    optimizer.zero_grad();
    check_equal(engine.stats().memory.in_use, engine.memory_plan().rest, "rest");
    CHECK(engine.stats().memory.overflow_slots == 0);
    if (step == 0) system_allocations = engine.stats().memory.system_allocations;
  }
  CHECK(engine.stats().memory.system_allocations == system_allocations);
  CHECK(engine.stats().memory.held_bytes == engine.memory_plan().held_bytes);
}

}  // namespace

TEST_CASE(
    "engine buffers equal the plan to the byte in every phase, and no later step reaches the "
    "system") {
  for (const int world : {1, 2, 4, 8}) {
    CAPTURE(world);
    for (const bool reshard : {true, false}) {
      for (const int prefetch : {0, 1, 2}) {
        CAPTURE(reshard);
        CAPTURE(prefetch);
        const Options options{.reshard_after_forward = reshard, .prefetch_units = prefetch};
        run_torch_ranks(world, [&](Mesh mesh) { check_steps(mesh, options); });
      }
    }
  }
}

TEST_CASE(
    "the plan holds for low precision, replication, threaded streams and embeddings left sharded") {
  const auto unit_options = [](std::string_view fqn) {
    return UnitOptions{.unshard_in_backward = fqn != "embedding"};
  };
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    for (const Options& options : {
             Options{.mixed_precision = {.param_dtype = torch::kBFloat16}},
             Options{.mixed_precision = {.param_dtype = torch::kBFloat16,
                                        .reduce_dtype = torch::kBFloat16}},
             Options{.strategy = Strategy::kReplicate},
             Options{.mixed_precision = {.param_dtype = torch::kBFloat16},
             .strategy = Strategy::kReplicate},
             Options{.strategy = Strategy::kZero2},
             Options{.mixed_precision = {.param_dtype = torch::kBFloat16},
             .strategy = Strategy::kZero2},
             Options{.strategy = Strategy::kZero1},
             Options{.mixed_precision = {.reduce_dtype = torch::kBFloat16},
             .strategy = Strategy::kZero1},
             Options{.tuning = {.cpu_streams = CpuStreamKind::kThreaded}},
             Options{.unit_options = unit_options},
         }) {
      run_torch_ranks(world, [&](Mesh mesh) { check_steps(mesh, options); });
    }
  }
}

TEST_CASE("the plan holds where the last units stay for backward") {
  for (const int world : {1, 2, 3}) {
    for (const int kept : {1, 2, 9}) {
      for (const int prefetch : {0, 1, 2}) {
        for (const int recompute : {0, 1}) {
          CAPTURE(world);
          CAPTURE(kept);
          CAPTURE(prefetch);
          CAPTURE(recompute);
          const Options options{
              .keep_last_units = kept, .prefetch_units = prefetch, .recompute = recompute};
          run_torch_ranks(world, [&](Mesh mesh) { check_steps(mesh, options); });
        }
      }
    }
  }
}

TEST_CASE("the plan holds where units are recomputed, from the first step on") {
  for (const int world : {1, 2, 3}) {
    for (const int every : {1, 2}) {
      for (const Strategy strategy : kStrategies) {
        for (const int prefetch : {0, 1, 2}) {
          CAPTURE(world);
          CAPTURE(every);
          CAPTURE(static_cast<int>(strategy));
          CAPTURE(prefetch);
          const Options options{
              .prefetch_units = prefetch, .recompute = every, .strategy = strategy};
          run_torch_ranks(world, [&](Mesh mesh) { check_steps(mesh, options); });
        }
      }
    }
  }
}

TEST_CASE("the plan holds on meshes of two axes, in every row") {
  for (const MeshShape& shape : kGroupShapes) {
    for (const Strategy strategy : kAllStrategies) {
      for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
        CAPTURE(shape.replicate);
        CAPTURE(shape.shard);
        CAPTURE(static_cast<int>(strategy));
        const Options options{.mixed_precision = {.param_dtype = dtype, .reduce_dtype = dtype},
                              .strategy = strategy};
        run_torch_ranks(shape, [&](Mesh mesh) { check_steps(mesh, options); });
      }
    }
  }
}

// Checks docs/memory.md for R groups of S ranks, and for parameters of P bytes in forward.
TEST_CASE("bytes of state by row follow the formulas within two per cent") {
  struct Row {
    Strategy strategy;
    // The bytes for each parameter: 12 for main shards and moments, 4 for main gradients, and those
    // of resident copies. A resident float32 copy contains the main shard.
    double (*bytes)(double s, double r, double p);
  };
  static constexpr auto kInCopy = [](double s, double r, double p) {
    return p < 4 ? 0 : 4 / (s * r);
  };
  const Row rows[] = {
      {Strategy::kFullShard, [](double s, double r, double) { return 16 / (s * r); }},
      {Strategy::kReplicate, [](double, double, double p) { return 16 + (p < 4 ? p : 0); }},
      {Strategy::kZero2,
       [](double s, double r, double p) { return 16 / (s * r) + p - kInCopy(s, r, p); }},
      {Strategy::kZero1,
       [](double s, double r, double p) { return 12 / (s * r) + 4 + p - kInCopy(s, r, p); }},
      {Strategy::kHybridShard, [](double s, double, double) { return 16 / s; }},
      {Strategy::kHfsdp, [](double s, double r,
                            double p) { return 12 / (s * r) + 4 / s + p / s - kInCopy(s, r, p); }},
      {Strategy::kHpz,
       [](double s, double r, double p) { return 16 / (s * r) + p / s - kInCopy(s, r, p); }},
  };
  static constexpr int64_t kWidth = 128, kLayers = 3, kVocabulary = 2048;
  const int64_t parameters = kLayers * (2 * kWidth + 4 * kWidth * kWidth + 3 * kWidth) +
                             2 * kVocabulary * kWidth + kVocabulary + 2 * kWidth;
  for (const MeshShape& shape : kGroupShapes) {
    for (const Row& row : rows) {
      for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
        CAPTURE(shape.replicate);
        CAPTURE(shape.shard);
        CAPTURE(static_cast<int>(row.strategy));
        CAPTURE(static_cast<int>(dtype));
        run_torch_ranks(shape, [&](Mesh mesh) {
          auto model = build_seeded(7, [] { return Unit<Chain>(kWidth, kLayers, kVocabulary); });
          Engine engine(model, mesh,
                        {.mixed_precision = {.param_dtype = dtype}, .strategy = row.strategy});
          AdamW optimizer(engine, {});
          const double expected =
              row.bytes(shape.shard, shape.replicate, static_cast<double>(c10::elementSize(dtype)));
          const MemoryBytes plan = engine.memory_plan().after_backward;
          CHECK(static_cast<double>(plan.total()) / static_cast<double>(parameters) ==
                doctest::Approx(expected).epsilon(0.02));
        });
      }
    }
  }
}

TEST_CASE("the plan holds where gradients are lent") {
  const auto make = [] { return Unit<Chain>(128, 2, 2221); };
  for (const int world : {2, 3}) {
    for (const auto streams : {CpuStreamKind::kInline, CpuStreamKind::kThreaded}) {
      for (const int prefetch : {0, 2}) {
        const Options options{.prefetch_units = prefetch, .tuning = {.cpu_streams = streams}};
        run_torch_ranks(world, [&](Mesh mesh) { check_steps(mesh, options, make); });
      }
    }
  }
}

TEST_CASE("bytes by rank follow the formula within two per cent") {
  static constexpr int64_t kWidth = 128, kLayers = 6, kVocabulary = 2048;
  const int64_t block = 2 * kWidth + 4 * kWidth * kWidth + 3 * kWidth;
  const int64_t embedding = kVocabulary * kWidth;
  const int64_t head = kVocabulary * kWidth + kVocabulary;
  const int64_t root = 2 * kWidth;
  const int64_t parameters = kLayers * block + embedding + head + root;
  for (const int world : {1, 2, 4, 8}) {
    CAPTURE(world);
    run_torch_ranks(world, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Chain>(kWidth, kLayers, kVocabulary); });
      Engine engine(model, mesh, {.prefetch_units = 1});
      AdamW optimizer(engine, {});
      const MemoryPlan plan = engine.memory_plan();
      const auto near = [&](int64_t bytes, double formula) {
        CHECK(static_cast<double>(bytes) == doctest::Approx(formula).epsilon(0.02));
      };
      // Main shards have 4 bytes a parameter and moments 8. With main gradients there are 16.
      near(plan.rest.total(), 12.0 * parameters / world);
      near(plan.after_backward.total(), 16.0 * parameters / world);
      // Parameter slots: k + 1 for the layers, and one each for embedding, head and root. There is
      // one reduce slot of each size, because with inline streams no reduction is pending. The
      // large weights of embedding and head have zero-copy gradients. The head's bias needs a slot.
      const double slots = world == 1 ? 0
                                      : 4.0 * (2 * block + embedding + head + root) +
                                            4.0 * (block + kVocabulary + root);
      near(plan.held_bytes, 16.0 * parameters / world + slots);
      // In forward, at most two layers are gathered in addition to the root (in FSDP2, three).
      const double gathered = 4.0 * (std::max({2 * block, block + embedding, block + head}) + root);
      near(plan.forward_peak[MemoryCategory::kParameterSlots], world == 1 ? 0 : gathered);
    });
  }
}

TEST_CASE("gradients kept between micro-batches take what the plan's row says") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    run_torch_ranks(world, [&](Mesh mesh) {
      // In the first model, gradients are copied to slots. In the second, large gradients are
      // zero-copy.
      for (const auto& [width, vocabulary] : {std::pair{16, 17}, std::pair{128, 2221}}) {
        auto model =
            build_seeded(7, [width, vocabulary] { return Unit<Chain>(width, 4, vocabulary); });
        Engine engine(model, mesh, {});
        const auto kept = [&] {
          return engine.stats().memory.in_use[MemoryCategory::kReduceSlots];
        };
        {
          const GradSync keep(engine, false);
          for (int micro = 0; micro < 2; ++micro) {
            loss_of(model, batch_of(micro, mesh.rank())).backward();
            CHECK(kept() == engine.memory_plan().kept_gradient_bytes);
          }
        }
        loss_of(model, batch_of(2, mesh.rank())).backward();
        CHECK(kept() == 0);
      }
    });
  }
}
