// Tests the folder that a run writes: it is a model that a run can start from.
#include "program.h"

using namespace fsdp::testing;

namespace {

Words tiny(const std::string& output) {
  return {"finetune", "--preset",           "tiny",     "--vocab-file",
          kVocabFile, "--train-file",       kTrainFile, "--validation-file",
          kDevFile,   "--output-dir",       output,     "--max-train-samples",
          "32",       "--max-eval-samples", "13",       "--max-seq-length",
          "128",      "--doc-stride",       "32",       "--num-train-epochs",
          "1"};
}

ProcessResult run(int ranks, const Words& arguments) {
  ProcessResult result = run_ranks_of(BERT_QA, ranks, arguments);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

}  // namespace

TEST_CASE("two ranks leave a complete Hugging Face folder, from which the same answers come") {
  const TemporaryDirectory place;
  const std::string trained = place.path() + "/trained", again = place.path() + "/again";
  const ProcessResult result = run(2, tiny(trained));
  for (const char* name : {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "predictions.json", "nbest_predictions.json",
                           "metrics.json", "train_log.jsonl"}) {
    CAPTURE(name);
    CHECK(std::filesystem::file_size(trained + "/" + name) > 0);
  }
  CHECK_FALSE(std::filesystem::exists(trained + "/null_odds.json"));
  CHECK(result.out.find("the model was written to " + trained) != std::string::npos);

  const nlohmann::json metrics = read_json(trained + "/metrics.json");
  for (const char* name : {"exact_match", "f1", "train_samples_per_second", "peak_memory_bytes",
                           "train_loss", "input_share"}) {
    CAPTURE(name);
    CHECK(metrics.contains(name));
  }
  CHECK(metrics["world_size"] == 2);
  const nlohmann::json step = read_json_lines(trained + "/train_log.jsonl").at(0);
  for (const char* name : {"step", "loss", "grad_norm", "lr", "samples_per_second",
                           "exposed_comm_ms", "input_ms", "memory_bytes"}) {
    CAPTURE(name);
    CHECK(step.contains(name));
  }
  CHECK(step["memory_bytes"].size() == 7);

  run(1, {"evaluate", "--model", trained, "--validation-file", kDevFile, "--output-dir", again,
          "--max-eval-samples", "13", "--max_seq_length", "128", "--doc_stride", "32"});
  CHECK(read_json(again + "/predictions.json") == read_json(trained + "/predictions.json"));
  CHECK(read_json(again + "/metrics.json")["f1"] == metrics["f1"]);
}

TEST_CASE("ranks without a window in the last batch take part, and logged losses are the same") {
  const TemporaryDirectory place;
  std::vector<double> losses[2];
  for (const int ranks : {1, 3}) {
    const std::string output = place.path() + "/" + std::to_string(ranks);
    // A step has 6 windows; with this number of questions the last step has fewer than 3.
    run(ranks,
        {"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file", kTrainFile,
         "--output-dir", output, "--max-train-samples", "13", "--no-shuffle", "--num-train-epochs",
         "1", "--dropout", "0", "--per-device-train-batch-size", std::to_string(6 / ranks)});
    for (const nlohmann::json& line : read_json_lines(output + "/train_log.jsonl")) {
      losses[ranks == 3].push_back(line["loss"]);
    }
  }
  REQUIRE(losses[0].size() == 3);
  REQUIRE(losses[1].size() == 3);
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    CHECK(losses[1][step] == doctest::Approx(losses[0][step]).epsilon(1e-6));
  }
}

TEST_CASE("v2 questions without an answer are trained on, answered and scored") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/v2.json", output = place.path() + "/out";
  std::ofstream(file) << R"({"data": [{"paragraphs": [{"context": "Ada wrote the first program.",
      "qas": [{"id": "q1", "question": "Who wrote it?", "is_impossible": false,
               "answers": [{"text": "Ada", "answer_start": 0}]},
              {"id": "q2", "question": "Who read it?", "answers": [], "is_impossible": true}]}]}]})";
  run(2, {"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file", file,
          "--validation-file", file, "--output-dir", output, "--version-2-with-negative",
          "--max-steps", "3"});
  CHECK(read_json(output + "/null_odds.json").size() == 2);
  const nlohmann::json metrics = read_json(output + "/metrics.json");
  for (const char* name : {"exact_match", "f1", "NoAns_f1", "best_f1_thresh"}) {
    CAPTURE(name);
    CHECK(metrics.contains(name));
  }
}

TEST_CASE("a tiny model learns the synthetic task that can be learnt") {
  const TemporaryDirectory place;
  run(2, {"finetune", "--preset", "tiny", "--data", "learnable", "--output-dir", place.path(),
          "--max-seq-length", "64", "--learning-rate", "1e-3", "--max-steps", "100", "--dropout",
          "0", "--warmup-ratio", "0.1", "--per-device-train-batch-size", "8"});
  CHECK(read_json(place.path() + "/metrics.json")["exact_match"].get<double>() >= 95.0);
}
