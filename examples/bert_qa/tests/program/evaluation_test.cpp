// Tests evaluations during training: the best model, early stopping, and resumed runs.
#include <algorithm>
#include <map>
#include <sstream>

#include "program.h"

using namespace fsdp::testing;

namespace {

// Four epochs of seven steps. 13 questions are answered after each epoch, which is uneven on two
// and three ranks. The threshold lets no evaluation count as an improvement after the first one, so
// the run stops after the third.
Words evaluated(const std::string& output, const Words& more = {}) {
  return Words{"finetune",
               "--preset=tiny",
               "--vocab-file",
               kVocabFile,
               "--train-file",
               kTrainFile,
               "--validation-file",
               kDevFile,
               "--max-train-samples=12",
               "--max-eval-samples=13",
               "--max-seq-length=64",
               "--doc-stride=16",
               "--num-threads=1",
               "--learning-rate=1e-3",
               "--dropout=0",
               "--num-train-epochs=4",
               "--max-answer-length=5",
               "--eval-strategy=epoch",
               "--load-best-model-at-end",
               "--early-stopping-patience=2",
               "--early-stopping-threshold=1000",
               "--report-to=tensorboard",
               "--output-dir",
               output} +
         more;
}

ProcessResult finetune(int ranks, const Words& arguments) {
  ProcessResult result = run_ranks_of(BERT_QA, ranks, arguments);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

// Returns the F1 of each evaluation by step, from the lines "step 8: exact match 0.00, F1 6.41".
std::map<int64_t, double> f1_of(const std::string& out) {
  std::map<int64_t, double> scores;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const size_t f1 = line.find(", F1 ");
    if (line.starts_with("step ") && f1 != std::string::npos) {
      scores[std::stoll(line.substr(5))] = std::stod(line.substr(f1 + 5));
    }
  }
  return scores;
}

}  // namespace

TEST_CASE("the best model is written and answers, and a run stops early, on one to three ranks") {
  std::map<int64_t, double> of_one_rank;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const TemporaryDirectory place;
    const std::string output = place.path() + "/out";
    // The batch of a step has 12 windows on any number of ranks.
    const std::string out =
        finetune(ranks,
                 evaluated(output, {"--per-device-train-batch-size", std::to_string(12 / ranks)}))
            .out;
    INFO(out);
    const std::map<int64_t, double> scores = f1_of(out);
    REQUIRE(scores.size() == 3);
    if (ranks == 1) of_one_rank = scores;
    CHECK(scores == of_one_rank);
    const auto best = std::ranges::max_element(
        scores, {}, [](const auto& each) { return each.second; });  // the first of equal ones
    CHECK(out.find("stopped early: f1 was best after step " + std::to_string(best->first) + "\n") !=
          std::string::npos);
    const nlohmann::json metrics = read_json(output + "/metrics.json");
    CHECK(metrics["f1"].get<double>() == doctest::Approx(best->second).epsilon(0.01));
    CHECK(metrics["train_steps"] == scores.rbegin()->first);
    // The written model is the best one: it has the same score alone.
    const ProcessResult alone = run_ranks_of(
        BERT_QA, 1,
        {"evaluate", "--model", output, "--validation-file", kDevFile, "--max-eval-samples=13",
         "--max-seq-length=64", "--doc-stride=16", "--max-answer-length=5"});
    CHECK(alone.out.find("F1 " + out.substr(out.rfind("F1 ") + 3, 4)) != std::string::npos);
    std::string events;
    for (const auto& file : std::filesystem::directory_iterator(output + "/runs")) {
      events += read_text(file);
    }
    CHECK(events.find("eval/f1") != std::string::npos);
    CHECK(events.find("eval/exact_match") != std::string::npos);
  }
}

TEST_CASE("a run that resumes has the evaluations and the best model of the undisturbed run") {
  const TemporaryDirectory place;
  const std::string whole = place.path() + "/whole", resumed = place.path() + "/resumed";
  const Words batch{"--per-device-train-batch-size=6"};
  const std::map<int64_t, double> scores = f1_of(finetune(2, evaluated(whole, batch)).out);
  REQUIRE(scores.size() == 3);
  // The first run ends with a checkpoint of the second evaluated step, before its evaluation.
  const std::string step = std::to_string(std::next(scores.begin())->first);
  finetune(2, evaluated(resumed, batch + Words{"--save-steps", step, "--stop-after-step", step}));
  const std::map<int64_t, double> later =
      f1_of(finetune(2, evaluated(resumed, batch + Words{"--resume", "auto"})).out);
  CHECK(later == std::map(std::next(scores.begin()), scores.end()));
  CHECK(read_text(resumed + "/model.safetensors") == read_text(whole + "/model.safetensors"));
  CHECK(read_text(resumed + "/predictions.json") == read_text(whole + "/predictions.json"));
}

TEST_CASE("evaluations that cannot be are refused with the flag") {
  const auto check_refused = [](const Words& arguments, const std::string& text) {
    const ProcessResult result = run_ranks_of(BERT_QA, 1, arguments);
    INFO(result.err);
    CHECK(result.code == 64);
    CHECK(result.err.find(text) != std::string::npos);
  };
  check_refused(
      {"finetune", "--preset=tiny", "--data=synthetic", "--output-dir=o", "--eval-strategy=epoch"},
      "--eval-strategy has no questions; hint: add --validation-file FILE or --data "
      "learnable");
  check_refused(evaluated("o", {"--metric-for-best-model=loss"}),
                "--metric-for-best-model cannot be 'loss'; hint: use f1 or exact_match");
  check_refused(evaluated("o", {"--ablate=communication"}),
                "a run without communication is not evaluated");
}
