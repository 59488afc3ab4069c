// Tests Options::memory_limit: the memory that it counts, the errors that it throws, and how long
// it is in effect.
#include <fsdp/optim.h>

#include <string>
#include <thread>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "libtorch/torch_memory.h"
#include "optim/support/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;
using doctest::Contains;

namespace {

constexpr int64_t kGraphWidth = 64;
constexpr int64_t kLimit = 1 << 20;

std::shared_ptr<UnitImpl<GraphImpl>> make_three() {
  return build_seeded(7, [] { return Unit<Graph>(3, kGraphWidth, in_a_row).ptr(); });
}

void backward_of_rows(UnitBody<GraphImpl>& graph, int64_t rows) {
  graph.call(values({rows, kGraphWidth}, 1)).sum().backward();
}

MeterReading reading(Engine& engine) {
  return state_of(engine).context->memory.cap().meter->reading();
}

std::string text_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

}  // namespace

TEST_CASE("limits that cannot be kept are refused when the engine is made") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    const auto refusal = [&](const Options& options) {
      return text_of([&] {
        const auto model = make_three();
        try {
          const Engine engine(model, mesh, options);
        } catch (const Error& error) {
          CHECK(error.exit_code() == 78);
          throw;
        }
      });
    };
    CHECK(refusal({.memory_limit = -1}) ==
          "memory_limit is -1, expected 0 or more (Options::memory_limit); hint: set the bytes "
          "that a rank may hold on "
          "its device, or 0 for no limit");
    const std::string too_low = refusal({.memory_limit = 1000});
    CHECK_MESSAGE(too_low.starts_with("the memory limit of 1000 B is too low to build the model "
                                      "(Options::memory_limit); "),
                  too_low);
    const std::string below_plan = refusal({.memory_limit = 60'000});
    CHECK_MESSAGE(below_plan.starts_with("the memory limit of 58.6 KiB is less than the "),
                  below_plan);
    CHECK_MESSAGE(
        below_plan.ends_with(
            " that the engine will hold (Options::memory_limit); the plan counts the engine's own "
            "buffers, without LibTorch's tensors; hint: raise the limit, or " +
            kRemedies +
            "prefetch_units = 0; cpu_offload = true; mixed_precision.param_dtype = kBFloat16; more "
            "ranks"),
        below_plan);
    // Neither the bytes, nor the limit, nor this thread's meter remain.
    CHECK(torch_memory::current_meter() == nullptr);
    const auto model = make_three();
    Engine engine(model, mesh, {.memory_limit = kLimit});
    CHECK(reading(engine).now.engine < 60'000);
    CHECK(engine.describe().ends_with("memory limit 1.0 MiB, LibTorch's tensors included\n"));
    backward_of_rows(*model, 4);
  });
}

TEST_CASE("an optimizer for which there is no room is refused, and counts nothing") {
  // Parameters and gradients fit into the limit. Two moments do not fit in addition, or only one of
  // the two does.
  for (const int64_t limit : {130'000, 160'000}) {
    CAPTURE(limit);
    run_torch_ranks(1, [&](const Mesh& mesh) {
      const auto model = make_three();
      Engine engine(model, mesh, {.memory_limit = limit});
      const int64_t before = engine.stats().memory.held_bytes;
      CHECK_THROWS_WITH_AS(
          AdamW(engine, {}),
          Contains(
              (limit == 130'000 ? beyond_limit("16.2 KiB") : "that the engine will hold").c_str()),
          InvalidArgument);
      CHECK(engine.stats().memory.held_bytes == before);
      CHECK(reading(engine).now.engine == before);
      SGD optimizer(engine, {.lr = 0.1});
      backward_of_rows(*model, 1);
      optimizer.step();
    });
  }
}

TEST_CASE("what is offloaded to the host is not the device's, and not in its limit") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    constexpr int64_t kTight = 110'000;
    {
      const auto model = make_three();
      CHECK_THROWS_AS(
          {
            Engine engine(model, mesh, Options{.memory_limit = kTight});
            AdamW(engine, {});
          },
          InvalidArgument);
    }
    const auto model = make_three();
    Engine engine(model, mesh, {.cpu_offload = true, .memory_limit = kTight});
    AdamW optimizer(engine, {});
    backward_of_rows(*model, 4);
    optimizer.step();
    const MemoryStats memory = engine.stats().memory;
    CHECK(memory.host_held_bytes > kTight - memory.held_bytes);
    CHECK(reading(engine).now.engine == memory.held_bytes);
  });
}

TEST_CASE("the engines of a mesh are one budget, under one limit") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    const auto first = make_three(), second = make_three();
    Engine makes(first, mesh, {.memory_limit = kLimit});
    const int64_t one = reading(makes).now.engine;
    for (const int64_t other : {int64_t{0}, 2 * kLimit}) {
      CHECK_THROWS_WITH_AS(
          Engine(second, mesh, {.memory_limit = other}),
          Contains("engines of one mesh have different memory limits, 1048576 and "),
          InvalidArgument);
    }
    {
      Engine tells(second, mesh, {.memory_limit = kLimit});
      CHECK(reading(makes).now.engine == 2 * one);
      CHECK(&state_of(tells).context->memory.cap() == &state_of(makes).context->memory.cap());
    }
    CHECK(reading(makes).now.engine == one);
    CHECK(torch_memory::current_meter() == state_of(makes).context->memory.cap().meter);
  });
}

TEST_CASE("a limit ends with its engines, and what they left is counted by the next") {
  run_torch_ranks(1, [](const Mesh& mesh) {
    at::Tensor kept;
    {
      const auto model = make_three();
      const Engine engine(model, mesh, {.memory_limit = kLimit});
      CHECK_THROWS_AS(torch::empty({kLimit}, torch::kByte), DeviceError);
      kept = torch::empty({kLimit / 2}, torch::kByte);
    }
    CHECK(torch_memory::current_meter() == nullptr);
    CHECK(torch::empty({kLimit}, torch::kByte).numel() == kLimit);
    const auto model = make_three();
    Engine engine(model, mesh, {.memory_limit = kLimit});
    CHECK(reading(engine).now.torch == kLimit / 2);
    CHECK_THROWS_AS(torch::empty({kLimit / 2}, torch::kByte), DeviceError);
  });
}

TEST_CASE("limits differ between ranks: refused by all of them") {
  const auto errors = errors_of_ranks(
      2,
      [](const Mesh& mesh) {
        const auto model = make_three();
        const Engine engine(model, mesh, {.memory_limit = (1 + mesh.rank()) * kLimit});
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CHECK_MESSAGE(error.find("memory_limit 1048576") != std::string::npos, error);
    CHECK_MESSAGE(error.find("memory_limit 2097152") != std::string::npos, error);
  }
}

TEST_CASE("without a limit nothing is counted") {
  run_torch_ranks(1, [](const Mesh& mesh) {
    const auto model = make_three();
    Engine engine(model, mesh, {});
    backward_of_rows(*model, 4);
    CHECK(torch_memory::current_meter() == nullptr);
    CHECK(state_of(engine).context->memory.cap().meter == nullptr);
  });
}

TEST_CASE("an engine in a thread that measures counts its buffers there") {
  run_torch_ranks(2, [](const Mesh& mesh) {
    const auto meter = std::make_shared<MemoryMeter>();
    const torch_memory::MeterScope scope(meter);
    const auto model = make_three();
    const int64_t built = meter->reading().now.torch;
    Engine engine(model, mesh, {});
    CHECK(meter->reading().now.engine == engine.stats().memory.held_bytes);
    CHECK(meter->reading().now.torch < built);  // the parameters when they were made
    backward_of_rows(*model, 4);
    CHECK(meter->reading().now.engine == engine.stats().memory.held_bytes);
    CHECK(meter->limit() == 0);
  });
}

TEST_CASE("the limit follows the thread that calls forward") {
  run_torch_ranks(1, [](const Mesh& mesh) {
    if (is_simulated_gpu()) return;  // each of its ranks has only one thread
    const auto model = make_three();
    Engine engine(model, mesh, {.memory_limit = kLimit});
    backward_of_rows(*model, 4);
    std::string error;
    std::thread([&] {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      const at::Tensor input = values({10'000, kGraphWidth}, 1);  // not yet of this engine's
      error = text_of([&] { model->call(input); });
      CHECK(torch_memory::current_meter() == state_of(engine).context->memory.cap().meter);
    }).join();
    CHECK_MESSAGE(error.find("(forward of unit 'u0')") != std::string::npos, error);
    backward_of_rows(*model, 4);
  });
}

TEST_CASE("under a BuildScope a limit below the whole model is enough for its shards") {
  static constexpr int kUnits = 16;
  constexpr int64_t kWhole = kUnits * (kGraphWidth * kGraphWidth + kGraphWidth) * 4;
  const auto build = [](const Mesh& mesh, int64_t limit) {
    BuildScope building(mesh, {.memory_limit = limit});
    Unit<Graph> model(kUnits, kGraphWidth, in_a_row);
    Engine engine(model, building);
    backward_of_rows(*model, 1);
    return reading(engine);
  };
  run_torch_ranks(4, [&](const Mesh& mesh) {
    CHECK(build(mesh, kWhole * 9 / 10).peaks.total() > kWhole / 4);
    CHECK(torch_memory::current_meter() == nullptr);
  });
  run_torch_ranks(1, [&](const Mesh& mesh) {
    const std::string refused = text_of([&] { build(mesh, kGraphWidth * kGraphWidth); });
    CHECK_MESSAGE(refused.starts_with("the memory limit of 4.0 KiB is too low to build the model"),
                  refused);
    CHECK(torch_memory::current_meter() == nullptr);
    CHECK(build(mesh, 10 * kWhole).now.engine > 0);  // the scope has released its lock
  });
}
