// Tests the times that fsdp-plan prints.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "planning/known_rates.h"
#include "planning/plan_report.h"
#include "planning/plan_table.h"
#include "planning/support/plan_words.h"

using namespace fsdp::testing;
using namespace planning;

namespace {

std::vector<TableRow> timed_rows(const PlanSettings& settings) {
  Planners planners(find_model(settings.model), settings.batch.length);
  return plan_rows(settings, planners);
}

const std::vector<const char*> kTimed = {"--model",  "gpt-tiny", "--seq-len",     "16",
                                         "--device", "cuda",     "--time",        "h100",
                                         "--batch",  "2",        "--param-dtype", "bfloat16"};

PlanSettings timed(std::vector<const char*> words) {
  words.insert(words.begin(), kTimed.begin(), kTimed.end());
  return settings_of(words);
}

std::string report_of(const PlanSettings& settings) {
  const KnownModel model = find_model(settings.model);
  Planners planners(model, settings.batch.length);
  return describe_plan(settings, model, PlanSearch(settings, planners).plan());
}

}  // namespace

TEST_CASE("the time in a table's row is that of the plan of that run alone") {
  const PlanSettings settings =
      timed({"--ranks", "8,16", "--hosts", "1,2", "--strategy", "all", "--json"});
  const std::vector<TableRow> rows = timed_rows(settings);
  std::istringstream lines(table_json(settings, rows));
  for (const TableRow& row : rows) {
    CAPTURE(row.strategy);
    const std::string ranks = std::to_string(row.ranks), hosts = std::to_string(row.hosts);
    const PlanSettings alone = timed(
        {"--ranks", ranks.c_str(), "--hosts", hosts.c_str(), "--strategy", row.strategy.c_str()});
    Planners planners(find_model("gpt-tiny"), 16);
    const PlanSearch search(alone, planners);
    const fsdp::StepTime& time = search.plan().time.value();
    CHECK(row.time.value().total_ns == time.total_ns);
    CHECK(row.time.value().exposed_gather_ns == time.exposed_gather_ns);
    CHECK(row.time.value().basis == time.basis);
    CHECK(row.utilization.value() > 0);
    CHECK(row.utilization.value() < 1);
    std::string line;
    REQUIRE(std::getline(lines, line));
    const auto json = nlohmann::json::parse(line);
    CHECK(json.at("step_ns") == time.total_ns);
    CHECK(json.at("tokens_per_second").get<double>() ==
          doctest::Approx(2 * 16 * 1e9 / static_cast<double>(time.total_ns)));
  }
  const std::string text = table_text(settings, find_model("gpt-tiny"), rows);
  CHECK(says(text, "tokens/s"));
  CHECK(says(text, "times: rates of H100"));
}

TEST_CASE("a report states the time, its parts and its basis in 80 columns") {
  const std::string text = report_of(timed({"--ranks", "16", "--hosts", "2"}));
  for (const char* part : {"a step", "tokens/s a rank, MFU", "compute", "products", "gathers",
                           "exposed of", "reductions", "optimizer", "basis: rates of H100"}) {
    CAPTURE(std::string(part));
    CHECK(says(text, part));
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }) <= 80);
  }
  // Without --time there is no time.
  CHECK_FALSE(says(report_of(settings_of({"--model", "gpt-tiny", "--device", "cuda"})), "a step"));
}

TEST_CASE("shipped rates are read, and each states where it comes from and its errors") {
  CHECK(rates_names().size() >= 1);
  for (const std::string& name : rates_names()) {
    CAPTURE(name);
    const fsdp::Rates rates = find_rates(name);
    CHECK(says(rates.source, "llm-foundry"));
    CHECK_FALSE(rates.residuals.empty());
    CHECK(rates.net.bytes > 0);
  }
}

TEST_CASE("--time with a bad value is refused with 64 and the names") {
  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "gpt-tiny"});
    return refusal_of([&] { settings_of(words); });
  };
  CHECK(refused({"--time"}).starts_with("64 --time has no value; hint: use --time FILE|NAME"));
  CHECK(says(refused({"--time"}), "h100"));
  CHECK(refused({"--time", "h1000"})
            .starts_with("64 --time cannot be 'h1000', which is no file; hint: use a file of "
                         "rates, or one of "));
  CHECK(says(refused({"--time", "h1000"}), "h100"));
  CHECK(refused({"--time", "h100", "--bandwidth", "1", "--flops", "1"})
            .starts_with("64 --time is set, but --bandwidth and --flops are set, too"));
  // Rates without the type of the model's products.
  const PlanSettings settings =
      settings_of({"--model", "gpt-tiny", "--seq-len", "16", "--device", "cuda", "--time", "h100"});
  CHECK(says(refusal_of([&] { report_of(settings); }), "78 the rates of 'H100"));
}
