// Tests output folders that are in use or not empty. No file is replaced without the flag for it.
#include "bert_qa/tests/support/error_texts.h"
#include "program.h"

using namespace fsdp::testing;

namespace {

Words finetune_over(const std::string& output, const Words& more = {}) {
  return Words{"finetune",  "--preset",         "tiny", "--data",
               "synthetic", "--max-seq-length", "32",   "--per-device-train-batch-size",
               "1",         "--max-steps",      "1",    "--output-dir",
               output} +
         more;
}

void check_refused(const Words& arguments, int code, const std::string& text) {
  CAPTURE(text);
  const ProcessResult result = run_ranks_of(BERT_QA, 2, arguments);
  INFO(result.out << result.err);
  CHECK(result.code == code);
  CHECK(result.err.starts_with("fsdp: error[" + std::to_string(code) + "] rank 0/2 host "));
  CHECK(result.err.substr(0, result.err.find('\n')).find(text) != std::string::npos);
  CHECK(result.out.find("step ") == std::string::npos);
}

}  // namespace

TEST_CASE("an earlier run's results are replaced only with --overwrite-output-dir") {
  const TemporaryDirectory place;
  const std::string output = place.path() + "/out", model = output + "/model.safetensors";
  std::filesystem::create_directory(output);
  std::ofstream(output + "/train_log.jsonl") << "{}\n";  // a run that ended early has no results
  REQUIRE(run_ranks_of(BERT_QA, 2, finetune_over(output)).code == 0);
  std::ofstream(model) << "the old model";
  check_refused(finetune_over(output), 73,
                "the output folder holds an earlier run's results (" + output +
                    "); metrics.json, model.safetensors, config.json would be replaced; hint: "
                    "add --overwrite-output-dir");
  CHECK(read_text(model) == "the old model");
  CHECK(run_ranks_of(BERT_QA, 2, finetune_over(output, {"--overwrite_output_dir"})).code == 0);
  CHECK(read_text(model) != "the old model");
}

TEST_CASE("a model of several files is an earlier result, of which none stays beside a new one") {
  const TemporaryDirectory place;
  const std::string output = place.path() + "/out";
  const Words shards = {"--max-shard-size", "5MB"};
  REQUIRE(run_ranks_of(BERT_QA, 2, finetune_over(output, shards)).code == 0);
  for (const char* name : {"metrics.json", "config.json", "model.safetensors.index.json"}) {
    std::filesystem::remove(output + "/" + name);
  }
  check_refused(finetune_over(output), 73,
                "model-00001-of-00003.safetensors, model-00002-of-00003.safetensors, "
                "model-00003-of-00003.safetensors would be replaced");
  std::ofstream(output + "/.model-00002-of-00007.safetensors.tmp.1.0") << "half";
  const ProcessResult again =
      run_ranks_of(BERT_QA, 2, finetune_over(output, {"--overwrite-output-dir"}));
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK(again.out.find("/.model-00002-of-00007.safetensors.tmp.1.0" + kLeftIncomplete) !=
        std::string::npos);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    files += entry.path().filename().string().find("model") != std::string::npos ? 1 : 0;
  }
  CHECK(files == 1);
}

TEST_CASE("a model is never written where it is read") {
  const TemporaryDirectory place;
  const std::string model = place.path() + "/model";
  REQUIRE(run_ranks_of(BERT_QA, 2, finetune_over(model)).code == 0);
  const std::string before = read_text(model + "/model.safetensors");
  const Words again = {
      "finetune",         "--model", model,         "--data", "synthetic",
      "--max-seq-length", "32",      "--max-steps", "1",      "--overwrite-output-dir",
      "--output-dir"};
  check_refused(again + Words{place.path() + "/../" + place.path().substr(5) + "/model"}, 64,
                "--output-dir is the folder of --model");
  CHECK(read_text(model + "/model.safetensors") == before);
}

TEST_CASE("a second run in one folder is refused and names the first") {
  const TemporaryDirectory output;
  Process first(Words{FSDP_RUN, "-n", "2", BERT_QA} +
                finetune_over(output.path(), {"--max-steps", "1000000"}));
  const std::string log = output.path() + "/train_log.jsonl";
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (read_text(log).empty() && std::chrono::steady_clock::now() < give_up) {
  }
  check_refused(finetune_over(output.path(), {"--overwrite-output-dir"}), 73,
                kAnotherRun + " (" + output.path() + "); pid ");
  kill(-first.pid(), SIGTERM);
  first.wait();
  CHECK(run_ranks_of(BERT_QA, 2, finetune_over(output.path())).code == 0);  // the lock is free
}

TEST_CASE("a folder that stands where a result has to go is found at the start") {
  const TemporaryDirectory output;
  for (const char* name : {"model.safetensors", "config.json", "train_log.jsonl", "metrics.json"}) {
    const std::string path = output.path() + "/" + name;
    std::filesystem::create_directory(path);
    check_refused(finetune_over(output.path(), {"--overwrite-output-dir"}), 73,
                  "a folder has the name of a result file (" + path + ")");
    std::filesystem::remove(path);
  }
}
