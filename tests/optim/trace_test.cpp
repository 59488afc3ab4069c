#include <fmt/format.h>
#include <fsdp/batch_transfer.h>
#include <fsdp/optim.h>
#include <fsdp/trace.h>
#include <unistd.h>

#include <cmath>
#include <compare>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/engine_parts.h"
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

struct Row {
  int rank;
  int64_t thread;
  auto operator<=>(const Row&) const = default;
};

struct Bar {
  int64_t begin;
  int64_t end;
};

// Checks the requirements of Perfetto: each rank has its own named threads, and the spans of each
// thread nest. Otherwise Perfetto merges threads and drops spans.
void check_rows(const nlohmann::json& events) {
  constexpr int64_t kRounding = 8;  // rounding of times as a double after years of uptime
  const auto nanoseconds = [](double microseconds) { return std::llround(microseconds * 1e3); };
  std::map<Row, std::string> names;
  std::map<Row, std::vector<Bar>> bars;
  for (const auto& event : events) {
    if (event["ph"] == "C") continue;
    const Row row{.rank = event["pid"], .thread = event["tid"]};
    if (event["name"] == "thread_name") names[row] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const int64_t begin = nanoseconds(event["ts"]);
    bars[row].push_back({begin, begin + nanoseconds(event["dur"])});
  }
  std::set<int64_t> threads;
  for (auto& [row, spans] : bars) {
    CAPTURE(row.thread);
    CHECK(threads.insert(row.thread).second);
    CHECK(names.contains(row));
    CHECK(row.thread > row.rank);
    for (const Bar& a : spans) {
      CHECK(a.begin <= a.end);
      CHECK(std::none_of(spans.begin(), spans.end(), [&](const Bar& b) {
        return a.begin + kRounding < b.begin && b.begin + kRounding < a.end &&
               a.end + kRounding < b.end;
      }));
    }
  }
}

}  // namespace

TEST_CASE("a trace shows each rank's forwards, gathers, captures, reductions and steps") {
  const std::filesystem::path file = scratch_file();
  for (const CpuStreamKind streams : {CpuStreamKind::kInline, CpuStreamKind::kThreaded}) {
    EngineStats stats;
    run_torch_ranks(2, [&](Mesh mesh) {
      auto model = build_seeded(7, [] { return Unit<Chain>(16, 4); });
      Engine engine(model, mesh, {.tuning = {.cpu_streams = streams}});
      SGD optimizer(engine, {.lr = 0.1});
      loss_of(model, batch_of(0, mesh.rank())).backward();  // before the trace begins
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
      CHECK(count(events, rank, "X", "backward") == kUnits);
      CHECK(count(events, rank, "X", "gather") == stats.all_gathers);
      CHECK(count(events, rank, "X", "reduce") == stats.reduces);
      // There is one capture for each parameter. On a GPU there is one for each unit, because all
      // gradients are small.
      CHECK(count(events, rank, "X", "capture") ==
            (is_simulated_gpu() ? kUnits : 1 + 4 * 6 + 2 + 2));
      CHECK(count(events, rank, "X", "optimizer") == 1);
      CHECK(count(events, rank, "X", "gradient norm") == 1);
    }
    // The last count of bytes must equal the bytes that the engine holds.
    nlohmann::json last;
    for (const auto& event : events) {
      if (event["ph"] == "C" && event["pid"] == 0) last = event;
    }
    CHECK(last.at("args").at(std::string(name_of(MemoryCategory::kMainShards))) ==
          stats.memory.in_use[MemoryCategory::kMainShards]);
    check_rows(events);
  }
  std::filesystem::remove(file);
}

TEST_CASE("a trace has a span for each step, without gaps, and one for each batch that is got") {
  const std::filesystem::path file = scratch_file();
  run_torch_ranks(2, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.1});
    torch::optim::SGD of_libtorch(engine.parameters(), 0.1);
    BatchTransfer<at::Tensor> batches(engine, 4, [&](int64_t step) {
      return batch_of(static_cast<int>(step), mesh.rank()).tokens;
    });
    const auto backward = [&] { model(batches.next()).sum().backward(); };
    const auto step = [&](auto& by) {
      by.step();
      by.zero_grad();
    };
    backward();
    step(optimizer);  // before the trace begins
    const Trace trace(engine);
    backward();
    backward();
    step(optimizer);
    backward();
    step(of_libtorch);
    { const InputSpan span(engine); }
    model(batch_of(0, 0).tokens.to(engine.device())).sum().backward();  // no step has ended since
    trace.write(file);
  });
  const auto events = nlohmann::json::parse(std::ifstream(file)).at("traceEvents");
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    CHECK(count(events, rank, "X", "input") == 4);
    std::vector<nlohmann::json> steps;
    std::map<std::string, std::vector<double>> begins;
    for (const auto& event : events) {
      if (event["pid"] != rank || event["ph"] != "X") continue;
      if (event["cat"] == "step") steps.push_back(event);
      begins[event["cat"]].push_back(event["ts"]);
    }
    REQUIRE(steps.size() == 2);
    std::ranges::sort(steps, {}, [](const nlohmann::json& span) {
      return std::pair(span["ts"].get<double>(), span["name"].get<std::string>());
    });
    CHECK(steps[0]["name"] == "step 2");
    CHECK(steps[1]["name"] == "step 3");
    CHECK(steps[0]["tid"] == steps[1]["tid"]);
    if (is_simulated_gpu()) continue;  // the clock of a simulated GPU does not advance
    const auto end_of = [](const nlohmann::json& span) {
      return span["ts"].get<double>() + span["dur"].get<double>();
    };
    const auto in = [&](const nlohmann::json& span, std::string_view category) {
      const std::vector<double>& all = begins[std::string(category)];
      return std::count_if(all.begin(), all.end(), [&](double begin) {
        return begin >= span["ts"].get<double>() && begin < end_of(span);
      });
    };
    CHECK(in(steps[0], "input") == 2);
    CHECK(in(steps[0], "optimizer") == 1);
    CHECK(in(steps[1], "input") == 2);
    CHECK(in(steps[1], "optimizer") == 0);
    CHECK(in(steps[0], "forward") == 2 * 6);
    CHECK(in(steps[1], "forward") == 6);
    CHECK(std::abs(end_of(steps[0]) - steps[1]["ts"].get<double>()) < 1000);
  }
  check_rows(events);
  std::filesystem::remove(file);
}

TEST_CASE("a lane whose spans cross is shown as two rows, each with spans that nest") {
  const std::filesystem::path file = scratch_file();
  run_torch_ranks(1, [&](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(); });
    Engine engine(model, mesh);
    const Trace trace(engine);
    const auto add = [&](std::string_view unit, int64_t begin, int64_t end) {
      state_of(engine).context->spans.add({SpanLane::kBackward, "backward", unit, begin, end});
    };
    constexpr int64_t kMonths = 123'456'789'012'345'001;  // a double would round it
    add("b", kMonths + 40, kMonths + 60);
    add("a", kMonths + 10, kMonths + 50);
    add("c", kMonths + 60, kMonths + 90);
    add("all", kMonths, kMonths + 100);
    add("first", kMonths, kMonths + 10);
    trace.write(file);
  });
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  CHECK(text.find("\"ts\":123456789012345.011,\"dur\":0.040}") != std::string::npos);
  const auto events = nlohmann::json::parse(text).at("traceEvents");
  std::map<int64_t, std::string> rows;
  for (const auto& event : events) {
    if (event["ph"] == "X") rows[event["tid"]] += event["name"].get<std::string>().substr(8);
  }
  CHECK(rows == std::map<int64_t, std::string>{{1000, " all first a c"}, {1001, " b"}});
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
