// Tests the times that fsdp-plan prints.
#include "planning/time_report.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "planning/known_rates.h"
#include "planning/plan_report.h"
#include "planning/plan_table.h"
#include "planning/support/plan_words.h"
#include "support/scratch_folder.h"

using namespace fsdp::testing;
using namespace planning;

namespace {

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
  const std::vector<TableRow> rows = rows_of(settings);
  std::istringstream lines(table_json(settings, find_model(settings.model), rows));
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
    CHECK(json.at("products_ns") == time.products_ns);
    CHECK(json.at("gather_ns") == time.gather_ns);
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
    CHECK_FALSE(rates.source.empty());
    CHECK(rates.residuals.empty() == (rates.thin_rows > 0));
    CHECK(rates.host.bytes > 0);
  }
}

TEST_CASE("--gpu and --time without a value choose memory, rates and links of a GPU") {
  const std::vector<const char*> words = {"--model", "gpt-tiny", "--seq-len", "16", "--gpu"};
  const auto with = [&](const char* gpu) {
    std::vector<const char*> all = words;
    all.insert(all.end(), {gpu, "--time"});
    return settings_of(all);
  };
  const PlanSettings settings = with("h100");
  CHECK(settings.rates.value() == find_rates("h100"));
  CHECK(settings.memory_bytes == int64_t{81559} << 20);
  CHECK(refusal_of([&] { with("t4"); })
            .starts_with("64 there are no rates of --gpu t4; hint: use --time FILE|NAME, or --gpu "
                         "with one of "));
}

TEST_CASE("--price and --watts give the cost of a billion tokens, or samples of BERT") {
  const std::vector<const char*> price = {"--ranks", "8", "--price", "2.5", "--watts", "1000"};
  const PlanSettings settings = timed(price);
  Planners planners(find_model("gpt-tiny"), 16);
  const fsdp::StepTime time = PlanSearch(settings, planners).plan().time.value();
  // A GPU-hour processes 32 tokens in each step.
  const double hours = static_cast<double>(time.total_ns) / 3.6e12 * 1e9 / 32;
  const std::string text = report_of(settings);
  CHECK(says(text, "a billion tokens cost $" + cost_text(2.5 * hours) + " and " + cost_text(hours) +
                       " kWh\n"));
  std::vector<const char*> rows = price;
  rows.push_back("--json");
  const PlanSettings table = timed(rows);
  const auto json = nlohmann::json::parse(table_json(table, planners.model(), rows_of(table)));
  CHECK(json.at("dollars_per_billion_tokens").get<double>() == doctest::Approx(2.5 * hours));
  CHECK(json.at("kwh_per_billion_tokens").get<double>() == doctest::Approx(hours));
  CHECK(says(table_text(table, planners.model(), rows_of(table)), "$/10^9 tokens"));

  PlanSettings bert = settings_of({"--model", "bert-tiny", "--device", "cuda", "--time", "h100",
                                   "--param-dtype", "bfloat16", "--price", "2.5"});
  // BERT's loss has a product in float32, of which the shipped rates have none.
  fsdp::TypeRates wide = *bert.rates.value().find(torch::kBFloat16);
  wide.dtype = torch::kFloat32;
  bert.rates->types.push_back(wide);
  CHECK(says(report_of(bert), "a billion samples cost $"));
  CHECK_FALSE(says(report_of(timed({"--ranks", "8"})), "cost"));

  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "gpt-tiny"});
    return refusal_of([&] { settings_of(words); });
  };
  CHECK(refused({"--price", "2"}).starts_with("64 --price is set, but --time is missing"));
  CHECK(refused({"--watts", "2"}).starts_with("64 --watts is set, but --time is missing"));
  CHECK(refused({"--trace", "x"}).starts_with("64 --trace is set, but --time is missing"));
  CHECK(refused({"--links", "x"}).starts_with("64 --links is set, but --time is missing"));
  for (const char* bad : {"0", "-1", "nan", "inf", "2.5x", "1e9", ""}) {
    CAPTURE(std::string(bad));
    CHECK(says(refused({"--time", "h100", "--price", bad}), "64 --price cannot be '"));
    CHECK(says(refused({"--time", "h100", "--watts", bad}), "64 --watts cannot be '"));
  }
  CHECK(refused({"--time", "h100", "--trace", "x", "--ranks", "1,2"})
            .starts_with("64 a table has no trace, but --trace is set"));
}

TEST_CASE("--links takes the network from fsdp-doctor's report") {
  const fsdp::ScratchFolder folder;
  const std::string file = folder / "links.json";
  const auto gathers_with = [&](const std::string& bytes_per_second) {
    std::ofstream(file)
        << R"({"version": 1, "links": [{"from": 0, "to": 1, "latency_us": 20, "rates": [
        {"message_bytes": 65536, "bytes_per_second": )" +
               bytes_per_second + "}]}]}";
    const PlanSettings settings = timed({"--ranks", "16", "--hosts", "2", "--links", file.c_str()});
    CHECK(says(report_of(settings), "network binds, measured"));
    Planners planners(find_model("gpt-tiny"), 16);
    return PlanSearch(settings, planners).plan().time.value().gather_ns;
  };
  CHECK(gathers_with("1e8") > 5 * gathers_with("1e9"));
}

TEST_CASE("--trace writes the trace of the planned step") {
  const fsdp::ScratchFolder folder;
  const std::string file = folder / "step.json";
  report_of(timed({"--ranks", "16", "--hosts", "2", "--trace", file.c_str()}));
  const auto trace = nlohmann::json::parse(fsdp::read_whole(file));
  int steps = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == "step") ++steps;
    if (event.at("name") == "process_name") CHECK(event.at("args").at("name") == "rank 0/16");
  }
  CHECK(steps == 2);
}

TEST_CASE("a table states the part of the speed that more ranks keep") {
  const PlanSettings settings = timed({"--ranks", "8,64,128", "--hosts", "1,8,16"});
  const std::vector<TableRow> rows = rows_of(settings);
  const auto part = [&](size_t i) {
    return fmt::format("{:.2f}", static_cast<double>(rows[0].time->total_ns) /
                                     static_cast<double>(rows[i].time->total_ns));
  };
  const std::string text = table_text(settings, find_model("gpt-tiny"), rows);
  CHECK(says(text, "full-shard: from 8 to 64 ranks it keeps " + part(1) + ", to 128 " + part(2) +
                       " of the tokens/s a rank\n"));
  const PlanSettings one = timed({"--ranks", "8,8", "--json"});
  CHECK_FALSE(says(table_text(one, find_model("gpt-tiny"), rows_of(one)), "it keeps"));
}

TEST_CASE("the slowest part of a step has the cause that the rates give it") {
  const auto slowest = [](double base_ns, double host_gbps, double net_gbps, double copy,
                          const char* hosts) {
    PlanSettings settings = timed({"--ranks", "16", "--hosts", hosts});
    fsdp::Rates& rates = settings.rates.value();
    rates.base_ns = base_ns;
    rates.host.step_ns = rates.net.step_ns = 0;
    rates.host.bytes = host_gbps * 1e9;
    rates.net.bytes = net_gbps * 1e9;
    rates.copy = copy;
    Planners planners(find_model("gpt-tiny"), 16);
    const fsdp::StepTime time = PlanSearch(settings, planners).plan().time.value();
    const SlowestPart part = slowest_part(rates, time);
    return part.part + ": " + part.cause;
  };
  constexpr double kFast = 1e9;  // GB/s
  CHECK(says(slowest(1e9, kFast, kFast, 1e15, "1"), "the latency of 15 ring steps in each of "));
  CHECK(says(slowest(0, 0.01, kFast, 1e15, "1"),
             "the bandwidth between the ranks of a host (0 GB/s)"));
  CHECK(says(slowest(0, kFast, 0.01, 1e15, "2"), "the bandwidth between hosts (0 GB/s)"));
  CHECK(says(slowest(0, kFast, kFast, 1e6, "1"), "the bandwidth of device memory (0 GB/s)"));
  const std::string text = report_of(timed({"--ranks", "16", "--hosts", "2"}));
  CHECK(says(text, "slowest thing to change: "));
  CHECK(says(text, "network binds"));
  CHECK(says(text, "assumed"));  // the origin of the links
}

TEST_CASE("the interval of a step's time follows from the errors of the rates") {
  fsdp::Rates rates;
  const fsdp::StepTime time{.total_ns = 1'100'000};
  CHECK_FALSE(interval_of(rates, time));
  rates.residuals = {{.rows = "a", .p90 = 0.1}, {.rows = "b", .p90 = 0.05}};
  CHECK(interval_of(rates, time)->least_ns == 1'000'000);
  CHECK(interval_of(rates, time)->most_ns == 1'222'222);
  CHECK(says(report_of(timed({"--ranks", "16", "--hosts", "2"})),
             "by the errors of nine of ten tried steps"));
}

TEST_CASE("a time from a few published steps is marked so") {
  std::string text = report_of(
      settings_of({"--model", "bert-tiny", "--device", "cuda", "--time", "k80", "--ranks", "4"}));
  std::ranges::replace(text, '\n', ' ');
  CHECK(says(text, "the rates come from 2 published steps"));
  CHECK_FALSE(says(report_of(timed({})), "published steps, so"));
}

TEST_CASE("ranks on several hosts are refused if the rates have no network") {
  const PlanSettings settings = settings_of({"--model", "bert-tiny", "--device", "cuda", "--time",
                                             "k80", "--ranks", "4", "--hosts", "2"});
  CHECK(says(refusal_of([&] { report_of(settings); }), "net"));
}

TEST_CASE("--time with a bad value is refused with 64 and the names") {
  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "gpt-tiny"});
    return refusal_of([&] { settings_of(words); });
  };
  CHECK(refused({"--time"})
            .starts_with(
                "64 --time has no value, and there is no --gpu; hint: use --time FILE|NAME"));
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
