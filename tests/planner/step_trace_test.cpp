// Tests traces of planned steps.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "planner/support/timed_plans.h"
#include "support/scratch_folder.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

nlohmann::json events_of(const std::filesystem::path& file) {
  return nlohmann::json::parse(read_whole(file)).at("traceEvents");
}

double ns_of(const nlohmann::json& event, const char* key) {
  return std::round(event.at(key).get<double>() * 1e3);
}

}  // namespace

TEST_CASE("a trace shows the planned step in virtual time, with waits and memory") {
  const ScratchFolder folder;
  for (const DeviceKind device : {DeviceKind::kCuda, DeviceKind::kCpu}) {
    PlanRequest request = on_gpus(16);
    request.mesh.device = device;
    request.ranks_per_host = 8;
    request.rates = sample_rates();
    request.trace_file = folder / "step.json";
    const auto loss = [](Unit<gpt::Gpt>& model) { return gpt_loss(model); };
    const StepTime time = plan(request, tiny_gpt, loss).time.value();
    std::set<std::string> rows, names;
    std::vector<nlohmann::json> steps;
    double first = 1e300, last = 0, exposed = 0;
    for (const nlohmann::json& event : events_of(request.trace_file)) {
      CHECK(event.at("pid") == 0);  // rank 0 stands for all ranks
      if (event.at("name") == "thread_name") rows.insert(event.at("args").at("name"));
      if (event.at("ph") != "X") continue;
      names.insert(event.at("cat"));
      if (event.at("cat") == "step") steps.push_back(event);
      if (event.at("cat") == "wait for gather") exposed += ns_of(event, "dur");
      first = std::min(first, ns_of(event, "ts"));
      last = std::max(last, ns_of(event, "ts") + ns_of(event, "dur"));
    }
    for (const char* row : {"steps", "compute", "gather", "reduce", "units in backward"}) {
      CAPTURE(std::string(row));
      CHECK(rows.contains(row));
    }
    for (const char* name : {"forward", "gather", "reduce", "optimizer", "wait for reduces"}) {
      CAPTURE(std::string(name));
      CHECK(names.contains(name));
    }
    REQUIRE(steps.size() == 2);
    CHECK(std::abs(ns_of(steps[1], "dur") - static_cast<double>(time.total_ns)) <= 2);
    // All times are those of the virtual clock, also those of the memory counter.
    int changes = 0;
    for (const nlohmann::json& event : events_of(request.trace_file)) {
      if (event.at("ph") != "C") continue;
      ++changes;
      CHECK(ns_of(event, "ts") >= first - 1);
      CHECK(ns_of(event, "ts") <= last + 1);
    }
    CHECK(changes > 10);
    if (device == DeviceKind::kCuda) CHECK(exposed > 0);
    // The trace changes no time.
    request.trace_file.clear();
    CHECK(std::abs(plan(request, tiny_gpt, loss).time.value().total_ns - time.total_ns) <= 1);
  }
}

TEST_CASE("a trace without rates, and a trace file that cannot be written, are refused") {
  const auto planned = [](const PlanRequest& request) {
    return plan(request, tiny_gpt, [](Unit<gpt::Gpt>& model) { return gpt_loss(model); });
  };
  PlanRequest request = on_gpus(2);
  request.trace_file = "step.json";
  CHECK_THROWS_WITH_AS(planned(request), doctest::Contains("trace_file is set, but rates are not"),
                       InvalidArgument);
  request.rates = sample_rates();
  const ScratchFolder folder;
  request.trace_file = folder / "missing/step.json";
  CHECK_THROWS_WITH_AS(planned(request), doctest::Contains("the trace file cannot be created"),
                       IoError);
}
