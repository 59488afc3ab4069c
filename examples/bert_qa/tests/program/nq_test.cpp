// Tests the task nq: Natural Questions, from the command line to the predictions.
#include <algorithm>
#include <map>
#include <sstream>

#include "program.h"

using namespace fsdp::testing;

namespace {

const std::string kNqTrain = kData + "/nq-train.jsonl.gz";
const std::string kNqDev = kData + "/nq-dev.jsonl.gz";

const Words kWindows{"--max-seq-length=96", "--doc-stride=48", "--max-query-length=24",
                     "--max-answer-length=5"};

// A step has 12 windows on any number of ranks. 7 questions are answered after each epoch.
Words finetuned(int ranks, const std::string& output, const Words& more = {}) {
  return Words{"finetune",
               "--task=nq",
               "--preset=tiny",
               "--vocab-file",
               kVocabFile,
               "--train-file",
               kNqTrain,
               "--validation-file",
               kNqDev,
               "--max-train-samples=24",
               "--max-eval-samples=7",
               "--num-threads=1",
               "--learning-rate=1e-3",
               "--dropout=0",
               "--num-train-epochs=3",
               "--eval-strategy=epoch",
               "--load-best-model-at-end",
               "--report-to=tensorboard",
               "--per-device-train-batch-size",
               std::to_string(12 / ranks),
               "--output-dir",
               output} +
         kWindows + more;
}

ProcessResult run_well(int ranks, const Words& arguments) {
  ProcessResult result = run_ranks_of(BERT_QA, ranks, arguments);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

// Returns the lines with both F1, such as "step 8: long answer F1 1.00, short answer F1 0.00".
std::vector<std::string> f1_lines(const std::string& out) {
  std::vector<std::string> found;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("answer F1 ") != std::string::npos) found.push_back(line);
  }
  return found;
}

void check_nq_refused(const Words& arguments, int code, const std::string& text) {
  const ProcessResult result = run_ranks_of(BERT_QA, 1, arguments);
  INFO(result.err);
  CHECK(result.code == code);
  CHECK(result.err.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("one command trains, evaluates and prints both F1, equally on one to three ranks") {
  std::vector<std::string> of_one_rank;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const TemporaryDirectory place;
    const std::string output = place.path() + "/out";
    const std::string out = run_well(ranks, finetuned(ranks, output)).out;
    INFO(out);
    const std::vector<std::string> lines = f1_lines(out);
    REQUIRE(lines.size() == 5);  // three evaluations, then one line for each F1
    if (ranks == 1) of_one_rank = lines;
    CHECK(lines == of_one_rank);
    CHECK(lines[3].starts_with("long answer F1 "));
    CHECK(lines[4].starts_with("short answer F1 "));
    const nlohmann::json metrics = read_json(output + "/metrics.json");
    CHECK(metrics["long-best-threshold-f1"].get<double>() > 0);
    CHECK(metrics["peak_memory_bytes"] == metrics["planned_engine_bytes"]);
    CHECK(metrics["sent_bytes_per_step"] == metrics["planned_sent_bytes"]);
    const nlohmann::json predictions = read_json(output + "/predictions.json")["predictions"];
    REQUIRE(predictions.size() == 7);
    CHECK(predictions[0]["example_id"] == 1);
    CHECK(predictions[0].size() == 6);
    CHECK(read_json(output + "/config.json")["architectures"][0] == "BertForNaturalQuestions");
    CHECK_FALSE(std::filesystem::exists(output + "/nbest_predictions.json"));
    std::string events;
    for (const auto& file : std::filesystem::directory_iterator(output + "/runs")) {
      events += read_text(file);
    }
    CHECK(events.find("eval/long-best-threshold-f1") != std::string::npos);
    CHECK(events.find("eval/short-best-threshold-f1") != std::string::npos);
    if (ranks != 2) continue;
    // The written model has the same answers alone. Its vocab.txt has the task's tokens.
    const std::string again = place.path() + "/again";
    const std::string alone =
        run_well(1, Words{"evaluate", "--task=nq", "--model", output, "--validation-file", kNqDev,
                          "--max-eval-samples=7", "--output-dir", again} +
                        kWindows)
            .out;
    CHECK(alone.find("tokens of Natural Questions replace") == std::string::npos);
    CHECK(f1_lines(alone) == std::vector(lines.begin() + 3, lines.end()));
    const nlohmann::json repeated = read_json(again + "/predictions.json")["predictions"];
    for (size_t i = 0; i < repeated.size(); ++i) {
      CHECK(repeated[i]["long_answer"] == predictions[i]["long_answer"]);
      CHECK(repeated[i]["short_answers"] == predictions[i]["short_answers"]);
    }
  }
}

TEST_CASE("a run of Natural Questions that resumes ends as the undisturbed run") {
  const TemporaryDirectory place;
  const std::string whole = place.path() + "/whole", resumed = place.path() + "/resumed";
  run_well(2, finetuned(2, whole));
  run_well(2, finetuned(2, resumed, {"--save-steps=5", "--stop-after-step=5"}));
  run_well(2, finetuned(2, resumed, {"--resume=auto"}));
  CHECK(read_text(resumed + "/model.safetensors") == read_text(whole + "/model.safetensors"));
  CHECK(read_text(resumed + "/predictions.json") == read_text(whole + "/predictions.json"));
}

TEST_CASE("the memory of both heads is as planned") {
  std::map<std::string, int64_t> rest;
  for (const std::string task : {"squad", "nq"}) {
    for (const int ranks : {1, 2}) {
      CAPTURE(task);
      CAPTURE(ranks);
      const TemporaryDirectory place;
      const std::string out =
          run_well(ranks, {"finetune", "--task", task, "--preset=tiny", "--data=synthetic",
                           "--max-steps=3", "--max-seq-length=64",
                           "--per-device-train-batch-size=2", "--num-threads=1", "--dropout=0",
                           "--memory-limit=1GiB", "--output-dir", place.path()})
              .out;
      INFO(out);
      CHECK(out.find("the engine's buffers are the plan's, to the byte") != std::string::npos);
      const nlohmann::json metrics = read_json(place.path() + "/metrics.json");
      const double planned = metrics["planned_device_bytes"];
      CHECK(metrics["peak_device_bytes"].get<double>() == doctest::Approx(planned).epsilon(0.001));
      rest[task] = metrics["planned_engine_bytes"];
    }
  }
  CHECK(rest["nq"] > rest["squad"]);
}

TEST_CASE("a question that is malformed ends the run with its file and line") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/bad.jsonl";
  std::ofstream(file) << "\n{\"example_id\": 1}\n";
  check_nq_refused({"finetune", "--task=nq", "--preset=tiny", "--vocab-file", kVocabFile,
                    "--train-file", file, "--output-dir", place.path() + "/out"},
                   65, "the record has no question_text (" + file + ", line 2");
}

TEST_CASE("predict needs no annotations, and bad records can be left out") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/asked.jsonl", output = place.path() + "/out";
  std::ofstream(file) << R"({"example_id":-7,"question_text":"who","document_text":"<P> ada </P>",)"
                      << R"("long_answer_candidates":[{"start_token":0,"end_token":3,)"
                      << R"("top_level":true}]})"
                      << "\n{}\n";
  const Words asked{"predict",           "--task=nq", "--model",      place.path() + "/model",
                    "--validation-file", file,        "--output-dir", output};
  run_well(1, {"init", "--task=nq", "--preset=tiny", "--vocab-file", kVocabFile, "--output-dir",
               place.path() + "/model"});
  check_nq_refused(asked, 65, "the record has no example_id (" + file + ", line 2");
  const std::string out = run_well(2, asked + Words{"--skip-bad-rows"}).out;
  CHECK(out.find("line 2 is left out: the record has no example_id") != std::string::npos);
  CHECK(out.find(file + ": 1 of 2 records left out") != std::string::npos);
  CHECK(out.find("  Q: who\n  A: ") != std::string::npos);
  CHECK(read_json(output + "/predictions.json")["predictions"][0]["example_id"] == -7);
}

TEST_CASE("flags of the other task are refused") {
  const Words nq{"finetune", "--task=nq", "--preset=tiny", "--data=synthetic", "--output-dir=o"};
  const Words squad{"finetune", "--preset=tiny", "--data=synthetic", "--output-dir=o"};
  check_nq_refused(
      nq + Words{"--version-2-with-negative"}, 64,
      "--version-2-with-negative is not a flag of --task nq; hint: leave it out, or use "
      "--task squad");
  check_nq_refused(squad + Words{"--include-unknowns=0.5"}, 64,
                   "--include-unknowns is not a flag of --task squad");
  check_nq_refused(squad + Words{"--task=newsqa"}, 64, "newsqa");
  check_nq_refused(nq + Words{"--data=files", "--vocab-file", kVocabFile, "--train-file", kNqTrain,
                              "--max-query-length=60", "--max-seq-length=63"},
                   64, "--max-query-length leaves no room for the document");
}
