// Tests demands for memory beyond Options::memory_limit. The error must help the user, and training
// must be able to continue.
#include <fsdp/optim.h>

#include <algorithm>
#include <set>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "optim/support/error_texts.h"
#include "support/mismatch_text.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int64_t kWidth = 64;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFewRows = 4, kManyRows = 200;

// A function that allocates memory only in backward, so that the peak of a step is there.
// LibTorch's own kernels are not suitable, because their memory depends on the processor.
struct WideBackward : torch::autograd::Function<WideBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.view_as(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/,
                                               torch::autograd::tensor_list gradients) {
    const at::Tensor wide = at::zeros({4 * gradients[0].size(0), kWidth});
    return {gradients[0] + wide[0][0].to(gradients[0].dtype())};
  }
};

at::Tensor in_a_row_and_wide(GraphImpl& graph, const at::Tensor& x) {
  return WideBackward::apply(in_a_row(graph, x));
}

std::shared_ptr<UnitImpl<GraphImpl>> make_graph(int units = 3) {
  return build_seeded(7, [&] { return Unit<Graph>(units, kWidth, in_a_row_and_wide).ptr(); });
}

at::Tensor loss_of_rows(UnitImpl<GraphImpl>& graph, int64_t rows, int step, int rank) {
  // It keeps no activation, because the test counts the units' activations.
  const at::Tensor weight = values({kWidth, 1}, 77);
  return torch::matmul(graph.call(values({rows, kWidth}, 100 * step + rank)), weight).mean();
}

MeterReading reading_of(Engine& engine) {
  return state_of(engine).context->memory.cap().meter->reading();
}

// The result of a training. Between two of its steps it may attempt a step that is much too large.
struct Attempt {
  std::vector<float> losses;  // rank 0's, without the attempted step
  std::string where;          // where the attempt failed; empty: no failure or no attempt
  int64_t peak = 0;           // peak of the last step
  int64_t forward_peak = 0, backward_peak = 0;  // peaks of the attempted step
};

// Trains three steps within `limit`. If `tries`, attempts a step that is too large before the
// second step.
Attempt train(int world, Options options, int64_t limit, bool tries) {
  options.memory_limit = limit;
  Attempt attempt;
  run_torch_ranks(world, [&](const Mesh& mesh) {
    const auto model = make_graph();
    Engine engine(model, mesh, options);
    SGD optimizer(engine, {.lr = 0.1, .momentum = 0.9});
    Attempt own;
    for (int step = 0; step < 3; ++step) {
      if (step == 1 && tries) {
        state_of(engine).context->memory.cap().meter->reset_peak();
        try {
          const at::Tensor loss = loss_of_rows(*model, kManyRows, step, mesh.rank());
          own.forward_peak = reading_of(engine).peak.total();
          loss.backward();
        } catch (const DeviceError& error) {
          CHECK(error.text().what.starts_with("out of memory: "));
          CHECK(error.text().hint.starts_with(kRemedies));
          own.where = error.text().where;
        }
        own.backward_peak = reading_of(engine).peak.total();
        optimizer.zero_grad();
      }
      const at::Tensor loss = loss_of_rows(*model, kFewRows, step, mesh.rank());
      loss.backward();
      own.losses.push_back(loss.item<float>());
      own.peak = reading_of(engine).peak.total();
      optimizer.step();
      optimizer.zero_grad();
    }
    const MemoryStats memory = engine.stats().memory;
    CHECK(memory.in_use[MemoryCategory::kParameterSlots] == 0);
    CHECK(memory.in_use[MemoryCategory::kReduceSlots] == 0);
    CHECK(memory.in_use[MemoryCategory::kMainGradients] == 0);
    if (mesh.rank() == 0) attempt = std::move(own);
  });
  return attempt;
}

}  // namespace

TEST_CASE("a step that passes the limit anywhere leaves the bits of a run that never tried") {
  const std::vector<Options> every = {
      {},
      {.cpu_offload = true},
      {.prefetch_units = 0, .recompute = 1},
      {.mixed_precision = {.param_dtype = torch::kBFloat16, .output_dtype = torch::kFloat32},
       .strategy = Strategy::kZero2}};
  for (const int world : {1, 2}) {
    for (const Options& options : every) {
      if (is_simulated_gpu() && (world == 1 || &options != &every.front())) continue;
      CAPTURE(world);
      CAPTURE(options.recompute);
      const Attempt never = train(world, options, 1024 * kMiB, /*tries=*/false);
      const Attempt free = train(world, options, 1024 * kMiB, /*tries=*/true);
      CHECK(free.where.empty());
      REQUIRE(free.forward_peak > never.peak);
      REQUIRE(free.backward_peak > free.forward_peak);
      std::set<std::string> places;
      const auto try_between = [&](int64_t low, int64_t high, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t limit = low + (high - low) * i / count;
          CAPTURE(limit);
          const Attempt attempt = train(world, options, limit, /*tries=*/true);
          CHECK(attempt.losses == never.losses);
          CHECK(!attempt.where.empty());
          CHECK(attempt.backward_peak <= limit);
          places.insert(attempt.where);
        }
      };
      try_between(never.peak, free.forward_peak, is_simulated_gpu() ? 1 : 8);
      try_between(free.forward_peak, free.backward_peak, is_simulated_gpu() ? 1 : 4);
      if (is_simulated_gpu()) continue;
      const auto has = [&](std::string_view begin) {
        return std::ranges::any_of(places,
                                   [&](const auto& each) { return each.starts_with(begin); });
      };
      CHECK(has("forward of unit '"));
      const bool in_backward = has("backward of unit '") || has("recomputation of unit '");
      CHECK(in_backward);
    }
  }
}

TEST_CASE("with a limit the engine tells what LibTorch holds, and the most of both together") {
  run_torch_ranks(1, [](const Mesh& mesh) {
    const auto model = make_graph();
    Engine engine(model, mesh, {.memory_limit = 1024 * kMiB});
    const at::Tensor kept = at::empty({kMiB / 4});
    engine.reset_peak_memory();
    at::empty({kMiB / 2});
    const MemoryStats memory = engine.stats().memory;
    CHECK(memory.torch_in_use == kMiB);
    CHECK(memory.torch_peak == 3 * kMiB);
    CHECK(memory.device_peak == memory.held_bytes + 3 * kMiB);
    engine.reset_peak_memory();
    CHECK(engine.stats().memory.torch_peak == kMiB);
  });
  run_torch_ranks(1, [](const Mesh& mesh) {
    const auto model = make_graph();
    const Engine engine(model, mesh, {});
    CHECK(engine.stats().memory.device_peak == 0);
  });
}

TEST_CASE(
    "the error says where, what is held and planned, and what would help, the cheapest first") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    const auto model = make_graph();
    Engine engine(model, mesh, {.reshard_after_forward = false, .memory_limit = kMiB});
    AdamW optimizer(engine, {});
    loss_of_rows(*model, kFewRows, 0, mesh.rank()).backward();
    optimizer.step();
    optimizer.zero_grad();
    try {
      loss_of_rows(*model, 10'000, 0, mesh.rank());
      FAIL_CHECK("it fitted");
    } catch (const DeviceError& error) {
      const ErrorText& text = error.text();
      CHECK(text.what.starts_with(beyond_limit("2.4 MiB") + "1.0 MiB leaves "));
      CHECK(text.where == "outside of units");  // allocated by the test itself
    }
    const at::Tensor input = values({2000, kWidth}, 1);
    try {
      model->call(input);
      FAIL_CHECK("it fitted");
    } catch (const DeviceError& error) {
      const ErrorText& text = error.text();
      CHECK(error.exit_code() == 70);
      CHECK(text.what.starts_with(beyond_limit("500.0 KiB")));
      CHECK(text.where == "forward of unit 'u0'");
      CHECK(text.cause.starts_with("held: "));
      for (const char* part : {" by the engine (main shards 2", ", optimizer state 4",
                               ", parameter slots ", ", other ", " by LibTorch; planned: "}) {
        CAPTURE(std::string(part));
        CAPTURE(text.cause);
        CHECK(text.cause.find(part) != std::string::npos);
      }
      CHECK(
          text.hint ==
          kRemedies +
              "reshard_after_forward = true; prefetch_units = 0; recompute = 1; "
              "cpu_offload = true; mixed_precision.param_dtype = kBFloat16; a smaller batch; more "
              "ranks");
    }
  });
}

TEST_CASE("what an engine does already is no remedy") {
  const auto hint_of = [](int world, Options options) {
    options.memory_limit = kMiB;
    std::string hint;
    run_torch_ranks(world, [&](const Mesh& mesh) {
      const auto model = make_graph();
      Engine engine(model, mesh, options);
      try {
        loss_of_rows(*model, 10'000, 0, mesh.rank());
      } catch (const DeviceError& error) {
        if (mesh.rank() == 0) hint = error.text().hint;
      }
    });
    return hint;
  };
  CHECK(hint_of(1, {.recompute = 1}) ==
        kRemedies +
            "cpu_offload = true; mixed_precision.param_dtype = kBFloat16; a "
            "smaller "
            "batch; more "
            "ranks");
  CHECK(hint_of(2, {.mixed_precision = {.param_dtype = torch::kBFloat16},
                    .keep_last_units = 1,
                    .prefetch_units = 0,
                    .recompute = 1,
                    .cpu_offload = true}) ==
        kRemedies + "keep_last_units = 0; a smaller batch; more ranks");
  CHECK(hint_of(2, {.strategy = Strategy::kZero1}) ==
        kRemedies +
            "strategy = kFullShard; recompute = 1; cpu_offload = true; "
            "mixed_precision.param_dtype = kBFloat16; a smaller batch; more ranks");
}

TEST_CASE("one rank alone beyond its limit ends all of them, and none hangs") {
  for (const bool in_backward : {false, true}) {
    CAPTURE(in_backward);
    const auto errors = errors_of_ranks(
        2,
        [&](const Mesh& mesh) {
          const auto model = make_graph();
          Engine engine(model, mesh, {.memory_limit = 2 * kMiB});
          const at::Tensor loss = loss_of_rows(*model, kFewRows, 0, mesh.rank());
          std::vector<at::Tensor> ballast;
          if (mesh.rank() == 1) {  // leaves only the bytes that the rest of the step needs
            const int64_t left = 2 * kMiB - reading_of(engine).now.total();
            ballast.push_back(torch::empty({left - 64}, torch::kByte));
          }
          if (in_backward) {
            loss.backward();
          } else {
            loss_of_rows(*model, kFewRows, 1, mesh.rank());
          }
        },
        torch_ranks_options());
    CHECK_MESSAGE(errors[1].starts_with("out of memory: "), errors[1]);
    CHECK_MESSAGE(errors[0].find("rank 1 gave up") != std::string::npos, errors[0]);
    CHECK_MESSAGE(errors[0].find("out of memory: ") != std::string::npos, errors[0]);
  }
}

TEST_CASE("a rank that goes on alone after its limit is told from the others by name") {
  const auto errors = errors_of_ranks(
      2,
      [](const Mesh& mesh) {
        const auto model = make_graph();
        Engine engine(model, mesh, {.prefetch_units = 0, .memory_limit = 2 * kMiB});
        for (int step = 0; step < 2; ++step) {
          const int64_t rows = step == 0 && mesh.rank() == 1 ? 2'500 : kFewRows;
          const at::Tensor input = values({rows, kWidth}, step);
          try {
            model->call(input).sum().backward();
          } catch (const DeviceError&) {
            engine.zero_grad();
          }
        }
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CHECK_MESSAGE(error.find(kDisagree) != std::string::npos, error);
  }
}

TEST_CASE("a step without memory for an unfrozen layer's moments fails again until there is some") {
  constexpr int64_t kLayer = 256 * 256;  // elements
  const auto make = [] {
    Unit<Graph> model(2, 256, in_a_row);
    model->units[1]->weight.set_requires_grad(false);
    return model.ptr();
  };
  run_torch_ranks(1, [&](const Mesh& mesh) {
    int64_t limit = 1024 * kMiB;
    for (const bool is_limited : {false, true}) {
      const auto model = build_seeded(7, make);
      Engine engine(model, mesh, {.memory_limit = limit});
      AdamW optimizer(engine, {});
      graph_loss(*model, 0, 0).backward();
      optimizer.step();
      optimizer.zero_grad();
      model->units[1]->weight.set_requires_grad(true);
      graph_loss(*model, 1, 0).backward();
      // The limit leaves memory for only one of the two moments.
      const MemoryStats memory = engine.stats().memory;
      limit = memory.held_bytes + memory.torch_in_use + kLayer * 6;
      if (!is_limited) continue;
      CHECK_THROWS_AS(optimizer.step(), DeviceError);
      CHECK_THROWS_AS(optimizer.step(), DeviceError);
    }
  });
}
