// Tests the tables of fsdp-plan.
#include "planning/plan_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "planning/support/plan_words.h"

using namespace fsdp::testing;
using namespace planning;

TEST_CASE("each row of a table is the plan of that run alone") {
  const PlanSettings settings =
      settings_of({"--model", "gpt-tiny", "--ranks", "2,4,8", "--hosts", "1,1,2", "--strategy",
                   "all", "--seq-len", "16", "--device", "cuda", "--save"});
  const std::vector<TableRow> rows = rows_of(settings);
  // Hybrid strategies need several hosts.
  CHECK(rows.size() == 4 + 4 + 7);
  for (const TableRow& row : rows) {
    CAPTURE(row.ranks);
    CAPTURE(row.strategy);
    const std::string ranks = std::to_string(row.ranks), hosts = std::to_string(row.hosts);
    const PlanSettings alone = settings_of(
        {"--model", "gpt-tiny", "--ranks", ranks.c_str(), "--hosts", hosts.c_str(), "--strategy",
         row.strategy.c_str(), "--seq-len", "16", "--device", "cuda", "--save"});
    Planners planners(find_model("gpt-tiny"), 16);
    PlanSearch search(alone, planners);
    CHECK(row.needed.device == search.needed().device);
    CHECK(row.needed.host == search.needed().host);
    CHECK(row.sent_bytes == search.plan().traffic.total_bytes());
    CHECK(row.checkpoint_bytes == search.plan().checkpoint->most_bytes);
  }
}

TEST_CASE("without --strategy, each row of a table has the strategy of its run") {
  const std::vector<TableRow> rows = rows_of(
      settings_of({"--model", "gpt-tiny", "--ranks", "2,4", "--hosts", "1,2", "--device", "cpu"}));
  CHECK(rows.size() == 2);
  CHECK(rows.front().strategy == "full-shard");
  CHECK(rows.back().strategy == "hybrid-shard");
}

TEST_CASE("the largest batch fits, and one sequence more does not") {
  for (const char* memory : {"60MB", "100MB", "37MB"}) {
    CAPTURE(std::string(memory));
    const PlanSettings settings =
        settings_of({"--model", "gpt-tiny", "--ranks", "2", "--batch", "largest", "--seq-len", "64",
                     "--device", "cuda", "--memory", memory, "--reserve", "0"});
    const TableRow row = rows_of(settings).front();
    const auto needs = [&](int64_t sequences) {
      const std::string batch = std::to_string(sequences);
      const PlanSettings alone =
          settings_of({"--model", "gpt-tiny", "--ranks", "2", "--batch", batch.c_str(), "--seq-len",
                       "64", "--device", "cuda"});
      Planners planners(find_model("gpt-tiny"), 64);
      return PlanSearch(alone, planners).needed().device;
    };
    REQUIRE(row.fits);
    CHECK(row.sequences > 1);
    CHECK(needs(row.sequences) == row.needed.device);
    CHECK(needs(row.sequences) <= settings.room().device);
    CHECK(needs(row.sequences + 1) > settings.room().device);
  }
  const PlanSettings none =
      settings_of({"--model", "gpt-tiny", "--ranks", "2", "--batch", "largest", "--device", "cuda",
                   "--memory", "1MB", "--reserve", "0"});
  CHECK_FALSE(rows_of(none).front().fits);
  CHECK(rows_of(none).front().sequences == 0);
}

TEST_CASE("a table recommends a command line whose plan fits") {
  const PlanSettings settings =
      settings_of({"--model", "gpt-tiny", "--ranks=2,4", "--strategy=all", "--seq-len", "16",
                   "--device", "cuda", "--memory", "30MB", "--reserve", "0", "--json"});
  const std::vector<TableRow> rows = rows_of(settings);
  const int best = recommended(settings, rows);
  REQUIRE(best >= 0);
  for (const TableRow& row : rows) {
    if (row.fits) CHECK(rows[best].ranks <= row.ranks);
  }
  const std::string text = table_text(settings, find_model("gpt-tiny"), rows);
  CHECK(says(text,
             "recommended: fsdp-plan --model gpt-tiny --seq-len 16 --device cuda --memory "
             "30MB --reserve 0 --ranks 2 --strategy " +
                 rows[best].strategy + " --batch 1\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("recommended: ")) CHECK(line.size() <= 80);
  }
  const std::string json = table_json(settings, find_model(settings.model), rows);
  CHECK(std::ranges::count(json, '\n') == std::ssize(rows));
  CHECK(says(json, "{\"model\":\"gpt-tiny\",\"ranks\":2,\"hosts\":1,\"strategy\":\""));
  CHECK(says(json, "\"fits\":true}"));
}

TEST_CASE("flags of tables that do not fit together are refused") {
  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--model", "gpt-tiny"});
    return refusal_of([&] { settings_of(words); });
  };
  CHECK(says(refused({"--ranks", "2,x"}), "64 --ranks cannot be 'x'"));
  CHECK(says(refused({"--ranks", "2,"}), "64 --ranks cannot be ''"));
  CHECK(says(refused({"--ranks", "2,4,8", "--hosts", "1,2"}),
             "64 --hosts has 2 numbers, but --ranks has 3"));
  CHECK(says(refused({"--ranks", "8,9", "--hosts", "2"}), "64 9 ranks cannot be divided equally"));
  CHECK(says(refused({"--ranks", "2,4", "--bandwidth", "10", "--flops", "10"}),
             "64 a table has no times by --bandwidth and --flops, but they are set"));
  CHECK(says(refused({"--ranks", "2", "--batch", "largest"}),
             "64 --batch largest needs to know the available memory"));
  CHECK(
      says(refused({"--ranks", "2", "--gpu", "h1000"}), "64 --gpu cannot be 'h1000'; hint: use "));
  CHECK(says(refused({"--ranks", "2", "--gpu", "h100", "--memory", "1GiB"}),
             "64 --gpu and --memory are set"));
  CHECK(says(refused({"--ranks", "2", "--gpu", "h100", "--device", "cpu"}),
             "64 --gpu is set, but --device is cpu"));
  CHECK(settings_of({"--model", "gpt-tiny", "--ranks", "2", "--gpu", "h100"}).memory_bytes ==
        int64_t{81559} << 20);
}
