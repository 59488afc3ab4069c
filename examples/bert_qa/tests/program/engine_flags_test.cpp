// Tests the engine's flags. They change the cost of a run but not its losses.
#include <sstream>
#include <thread>

#include "bert_qa/tests/support/error_texts.h"
#include "program.h"

using namespace fsdp::testing;

namespace {

ProcessResult five_steps(int ranks, const std::string& output, const Words& flags) {
  ProcessResult result =
      run_ranks_of(BERT_QA, ranks,
                   Words{"finetune", "--preset", "tiny", "--data", "learnable", "--output-dir",
                         output, "--max-seq-length", "64", "--learning-rate", "1e-3", "--max-steps",
                         "5", "--dropout", "0", "--num-threads", "1"} +
                       flags);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return result;
}

std::vector<double> losses(int ranks, const Words& flags) {
  const TemporaryDirectory output;
  five_steps(ranks, output.path(), flags);
  std::vector<double> losses;
  for (const nlohmann::json& line : read_json_lines(output.path() + "/train_log.jsonl")) {
    losses.push_back(line["loss"]);
  }
  return losses;
}

}  // namespace

TEST_CASE("mapping, prefetch, resharding and replication give the same bits" *
          doctest::skip(!is_long_run())) {
  const std::vector<double> plain = losses(2, {});
  REQUIRE(plain.size() == 5);
  CHECK(losses(2, {"--map-shards", "false"}) == plain);
  CHECK(losses(2, {"--prefetch", "0"}) == plain);
  CHECK(losses(2, {"--prefetch", "2"}) == plain);
  CHECK(losses(2, {"--reshard-after-forward", "false"}) == plain);
  CHECK(losses(2, {"--strategy", "replicate"}) == plain);
  CHECK(losses(2, {"--memory-limit", "1GiB"}) == plain);
}

TEST_CASE("a step that its plan says cannot fit is refused before anything is built") {
  const TemporaryDirectory output;
  const ProcessResult refused =
      run_ranks_of(BERT_QA, 2,
                   {"finetune", "--preset", "tiny", "--data", "learnable", "--output-dir",
                    output.path(), "--max-seq-length", "64", "--memory-limit", "40MiB"});
  INFO(refused.err);
  CHECK(refused.code == 78);
  const std::string line = refused.err.substr(0, refused.err.find('\n'));
  CHECK(line.find(kStepBeyond + "40.0 MiB") != std::string::npos);
  CHECK(line.find(kRemedies) != std::string::npos);
  CHECK(line.find("use --force to run anyway") != std::string::npos);
}

TEST_CASE("a run's plan is fsdp-plan's, and its engine buffers and bytes sent are as planned") {
  int row = 0;
  for (const Words& flags : {Words{}, Words{"--strategy", "zero2"}, Words{"--recompute", "1"},
                             Words{"--map-shards", "false", "--param-dtype", "bfloat16"}}) {
    if (row++ % 3 != 0 && !is_long_run()) continue;
    const TemporaryDirectory output;
    const ProcessResult run =
        run_ranks_of(BERT_QA, 2,
                     Words{"finetune", "--preset", "mini", "--data", "synthetic", "--output-dir",
                           output.path(), "--max-seq-length", "64", "--per-device-train-batch-size",
                           "4", "--max-steps", "3", "--log-level", "debug"} +
                         flags);
    INFO(run.out << run.err);
    REQUIRE(run.code == 0);
    const ProcessResult plan = run_process(Words{FSDP_PLAN, "--model", "bert-mini", "--ranks", "2",
                                                 "--batch", "4", "--seq-len", "64"} +
                                               flags,
                                           {}, std::chrono::seconds(60));
    INFO(plan.out << plan.err);
    REQUIRE(plan.code == 0);
    const size_t table = plan.out.find("bytes of one rank");
    REQUIRE(table != std::string::npos);
    CHECK(run.out.find(plan.out.substr(table)) != std::string::npos);
    const nlohmann::json metrics = read_json(output.path() + "/metrics.json");
    CHECK(metrics["planned_engine_bytes"] == metrics["peak_memory_bytes"]);
    CHECK(metrics["planned_sent_bytes"] == metrics["sent_bytes_per_step"]);
    CHECK(metrics["planned_sent_bytes"] > 0);
  }
}

TEST_CASE("a run says in a line each what a step will take and what it took; debug: in tables") {
  const auto said = [](const Words& flags) {
    const TemporaryDirectory output;
    return five_steps(2, output.path(), flags).out;
  };
  const std::string text = said({"--logging-steps", "1"});
  INFO(text);
  CHECK(text.starts_with("full-shard on 2 ranks, "));
  CHECK(text.find(" a rank at rest, ") < text.find(" at peak\n"));
  CHECK(text.find("bytes of") == std::string::npos);
  const size_t measured = text.find("\nstep 2: engine ");
  CHECK(text.find("\nstep 2/5  loss ") < measured);
  CHECK(text.find(" sent, as planned\n", measured) < text.find("\nstep 3/5  loss "));
  const std::string tables = said({"--log-level", "debug"});
  INFO(tables);
  CHECK(tables.find("\nbytes of one rank ") != std::string::npos);   // the plan
  CHECK(tables.find("\nunit        ") != std::string::npos);         // the engine
  CHECK(tables.find("\nbytes of this rank ") != std::string::npos);  // measured
  CHECK(tables.find("full-shard on 2 ranks") == std::string::npos);
}

TEST_CASE(
    "a step beyond the memory limit ends with its unit, and a limit below the model with 78") {
  const auto ended = [](const std::string& limit) {
    const TemporaryDirectory output;
    return run_ranks_of(
        BERT_QA, 2,
        {"finetune", "--preset", "tiny", "--data", "learnable", "--output-dir", output.path(),
         "--max-seq-length", "64", "--num-threads", "1", "--memory-limit", limit, "--force"});
  };
  const ProcessResult in_training = ended("40MiB");
  INFO(in_training.err);
  CHECK(in_training.code == 70);
  CHECK(in_training.err.find("are needed, but the limit of 40.0 MiB leaves ") != std::string::npos);
  CHECK(in_training.err.find(kRemedies) != std::string::npos);
  const ProcessResult in_building = ended("100KiB");
  INFO(in_building.err);
  CHECK(in_building.code == 78);
  CHECK(in_building.err.find("too low to build the model") != std::string::npos);
}

TEST_CASE("bfloat16 parameters and gradients train to about the same losses" *
          doctest::skip(!is_long_run())) {
  const std::vector<double> plain = losses(2, {});
  const std::vector<double> narrow =
      losses(2, {"--param-dtype", "bfloat16", "--reduce-dtype", "bfloat16"});
  REQUIRE(narrow.size() == plain.size());
  for (size_t step = 0; step < plain.size(); ++step) {
    CAPTURE(step);
    CHECK(narrow[step] != plain[step]);
    CHECK(narrow[step] == doctest::Approx(plain[step]).epsilon(0.05));  // 8 bits of mantissa
  }
}

TEST_CASE("a trace holds what both ranks did") {
  const TemporaryDirectory output;
  const std::string file = output.path() + "/trace.json";
  const ProcessResult result = five_steps(2, output.path(), {"--trace", file});
  CHECK(result.out.find("the trace was written to " + file) != std::string::npos);
  const nlohmann::json trace = nlohmann::json::parse(read_text(file));
  for (const int rank : {0, 1}) {
    int64_t steps = 0;
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      steps += event["pid"] == rank && event.value("cat", "") == "optimizer" ? 1 : 0;
    }
    CHECK(steps == 5);
  }
}

TEST_CASE("without communication a run is timed and writes no model") {
  const TemporaryDirectory output;
  const ProcessResult result = five_steps(2, output.path(), {"--ablate", "communication"});
  CHECK(result.out.find("communication was off") != std::string::npos);
  CHECK(nlohmann::json::parse(read_text(output.path() + "/metrics.json")).at("ablated") ==
        "communication");
  CHECK(!std::filesystem::exists(output.path() + "/model.safetensors"));
}

TEST_CASE("a rank killed while it trains ends the job with 75 and its name") {
  const TemporaryDirectory output;
  Process job({FSDP_RUN, "-n", "2", BERT_QA, "finetune", "--preset", "tiny", "--data", "learnable",
               "--output-dir", output.path(), "--max-steps", "1000000"});
  const std::string log = output.path() + "/train_log.jsonl";
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (read_json_lines(log).size() < 3 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the run is a process of its own
  }
  const std::string pid = std::to_string(job.pid());
  std::istringstream children(read_text("/proc/" + pid + "/task/" + pid + "/children"));
  pid_t first = 0, second = 0;
  children >> first >> second;
  REQUIRE(second > 0);
  REQUIRE(kill(second, SIGKILL) == 0);
  const ProcessResult result = job.wait(std::chrono::seconds(90));
  INFO(result.err);
  CHECK(result.code == 75);
  CHECK(result.err.find("rank 1 was killed by signal 9 (SIGKILL)") != std::string::npos);
  CHECK(result.err.find("fsdp: error[75] rank 0/2") != std::string::npos);
  CHECK(result.err.find("terminate called") == std::string::npos);
}
