// Tests runs that compare the time of their steps with a prediction.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "program.h"

using namespace fsdp::testing;

namespace {

// Rates of a CPU on which products take all of the time.
const std::string kRates = R"({"format": "fsdp rates 1", "machine": "a test's CPU",
  "source": "chosen", "device": {"copy_gbps": 1e6, "host_ns_per_call": 0},
  "products": {"float32": [[1, 1e9]]}, "attention": {"float32": 1e9},
  "link": [{"scope": "host", "gbps": 1e6, "base_ns": 0, "step_ns": 0}], "contention": 0})";

ProcessResult four_steps(const std::string& output, const Words& flags) {
  return run_ranks_of(
      BERT_QA, 2,
      Words{"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir", output,
            "--max-seq-length", "32", "--max-steps", "4", "--num-threads", "1"} +
          flags);
}

}  // namespace

TEST_CASE("a run with rates logs the predicted time of each step beside the measured one") {
  const TemporaryDirectory output;
  const std::string file = output.path() + "/rates.json";
  std::ofstream(file) << kRates;
  const std::string timed = output.path() + "/timed", plain = output.path() + "/plain";
  const ProcessResult run = four_steps(timed, {"--time", file});
  INFO(run.err);
  REQUIRE(run.code == 0);
  std::vector<double> measured;
  double predicted = 0;
  for (const nlohmann::json& line : read_json_lines(timed + "/train_log.jsonl")) {
    predicted = line.at("predicted_ms");
    measured.push_back(line.at("step_ms"));
  }
  REQUIRE(measured.size() == 4);
  // The products of a step: 6 operations for each token and parameter of the layers, and more for
  // attention. A second has 10^9 of them.
  CHECK(predicted > 10);
  CHECK(predicted < 10000);
  std::ranges::sort(measured);
  const double median = (measured[1] + measured[2]) / 2;
  CHECK(run.out.find(fmt::format("\npredicted {:.1f} ms, took {:.1f} ms a step (median)\n",
                                 predicted, median)) != std::string::npos);
  const nlohmann::json metrics = read_json(timed + "/metrics.json");
  CHECK(metrics.at("predicted_step_ms") == predicted);
  CHECK(metrics.at("median_step_ms").get<double>() == doctest::Approx(median));

  // Twice the rate of products halves the prediction.
  std::string faster = kRates;
  for (size_t at = 0; (at = faster.find("1e9", at)) != std::string::npos;)
    faster.replace(at, 3, "2e9");
  std::ofstream(file) << faster;
  REQUIRE(four_steps(output.path() + "/faster", {"--time", file}).code == 0);
  const auto lines = read_json_lines(output.path() + "/faster/train_log.jsonl");
  CHECK(lines.at(0).at("predicted_ms").get<double>() ==
        doctest::Approx(predicted / 2).epsilon(0.05));

  const ProcessResult without = four_steps(plain, {});
  REQUIRE(without.code == 0);
  CHECK(without.out.find("predicted") == std::string::npos);
  for (const nlohmann::json& line : read_json_lines(plain + "/train_log.jsonl")) {
    CHECK_FALSE(line.contains("predicted_ms"));
    CHECK_FALSE(line.contains("step_ms"));
  }
}

TEST_CASE("--time is refused with the reason where a step cannot be predicted") {
  const TemporaryDirectory output;
  const auto refused = [&](const Words& flags) { return four_steps(output.path(), flags); };
  const ProcessResult unknown = refused({"--time", "none"});
  CHECK(unknown.code == 64);
  CHECK(unknown.err.find("--time cannot be 'none', which is no file") != std::string::npos);
  const ProcessResult several = refused({"--time", "h100", "--gradient-accumulation-steps", "2"});
  CHECK(several.code == 64);
  CHECK(several.err.find("a step has several micro-batches") != std::string::npos);
  const ProcessResult type = refused({"--time", "h100"});  // the rates have only bfloat16
  CHECK(type.code == 78);
  CHECK(type.err.find("have no rate of Float for products") != std::string::npos);
}
