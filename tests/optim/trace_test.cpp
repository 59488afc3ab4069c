#include <fmt/format.h>
#include <fsdp/optim.h>
#include <fsdp/trace.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fsdp/error.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

std::filesystem::path scratch_file() {
  return std::filesystem::temp_directory_path() / fmt::format("fsdp-trace-{}.json", getpid());
}

int64_t count(const nlohmann::json& events, int rank, std::string_view phase,
              std::string_view category) {
  return std::count_if(events.begin(), events.end(), [&](const auto& event) {
    return event["pid"] == rank && event["ph"] == phase && event.value("cat", "") == category;
  });
}

}  // namespace

TEST_CASE("a trace shows each rank's forwards, gathers, captures, reductions and steps") {
  const std::filesystem::path file = scratch_file();
  for (const CpuStreamKind streams : {CpuStreamKind::kInline, CpuStreamKind::kThreaded}) {
    EngineStats stats;
    run_torch_ranks(2, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Chain>(16, 4); });
      Engine engine(model, mesh, {.cpu_streams = streams});
      SGD optimizer(engine, {.lr = 0.1});
      loss_of(model, batch_of(0, mesh.rank())).backward();  // before the trace: not in it
      optimizer.zero_grad();
      {
        const Trace earlier(engine);
        loss_of(model, batch_of(0, mesh.rank())).backward();
        optimizer.zero_grad();
      }
      const EngineStats before = engine.stats();
      const Trace trace(engine);
      loss_of(model, batch_of(1, mesh.rank())).backward();
      optimizer.step();
      trace.write(file);
      if (mesh.rank() != 0) return;
      stats = engine.stats();
      stats.all_gathers -= before.all_gathers;
      stats.reduces -= before.reduces;
    });
    const auto events = nlohmann::json::parse(std::ifstream(file)).at("traceEvents");
    constexpr int64_t kUnits = 7;  // embedding, four blocks, head, root
    for (const int rank : {0, 1}) {
      CAPTURE(rank);
      CHECK(count(events, rank, "X", "forward") == kUnits);
      CHECK(count(events, rank, "b", "backward") == kUnits);
      CHECK(count(events, rank, "e", "backward") == kUnits);
      CHECK(count(events, rank, "X", "gather") == stats.all_gathers);
      CHECK(count(events, rank, "X", "reduce") == stats.reduces);
      CHECK(count(events, rank, "X", "capture") == 1 + 4 * 6 + 2 + 2);  // one a parameter
      CHECK(count(events, rank, "X", "optimizer") == 1);
      CHECK(count(events, rank, "X", "gradient norm") == 1);
    }
    // The last count of bytes is what the engine holds.
    nlohmann::json last;
    for (const auto& event : events) {
      if (event["ph"] == "C" && event["pid"] == 0) last = event;
    }
    CHECK(last.at("args").at(std::string(name_of(MemoryCategory::kMainShards))) ==
          stats.memory.in_use[MemoryCategory::kMainShards]);
    for (const auto& event : events) {
      if (event["ph"] == "X") CHECK(event["dur"] >= 0.0);
    }
  }
  std::filesystem::remove(file);
}

TEST_CASE("a trace into a folder that does not exist is refused with its path") {
  run_torch_ranks(1, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    const Trace trace(engine);
    try {
      trace.write("/no/such/folder/trace.json");
      FAIL("was written");
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCannotCreate);
      CHECK(std::string(error.what()).find("/no/such/folder/trace.json") != std::string::npos);
    }
  });
}
