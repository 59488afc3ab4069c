// Tests a full disk: the program ends with code 74 and one line that names the file. It keeps old
// files, and leaves no half-written file. A limit on file sizes (ulimit -f, in units of 512 bytes)
// replaces the full disk.
#include "program.h"

using namespace fsdp::testing;

namespace {

void check_full(const std::string& blocks, const Words& arguments, const std::string& text) {
  CAPTURE(text);
  const ProcessResult result =
      run_process(Words{FSDP_RUN, "-n", "2", "sh", "-c", "ulimit -f " + blocks + "; exec \"$@\"",
                        "sh", BERT_QA} +
                      with_device(arguments),
                  {}, std::chrono::seconds(300));
  INFO(result.err);
  CHECK(result.code == 74);
  const std::string line = result.err.substr(0, result.err.find('\n'));
  CHECK(line.starts_with("fsdp: error[74] rank 0/2 host "));
  CHECK(line.find(text) != std::string::npos);
  CHECK(line.find("; File too large; hint: ") != std::string::npos);
  CHECK(result.err.find("rank 0 ended with code 74") != std::string::npos);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Words finetune_on_full_disk(const std::string& output) {
  return {"finetune",
          "--preset",
          "tiny",
          "--data",
          "synthetic",
          "--max-seq-length",
          "32",
          "--per-device-train-batch-size",
          "1",
          "--max-steps",
          "5",
          "--overwrite-output-dir",
          "--output-dir",
          output};
}

}  // namespace

TEST_CASE("a training log that does not fit ends the run and keeps its whole lines") {
  const TemporaryDirectory output;
  std::ofstream(output.path() + "/model.safetensors") << "the old model";
  check_full("2", finetune_on_full_disk(output.path()),
             "the training log cannot be written (" + output.path() + "/train_log.jsonl)");
  const std::string log = read_text(output.path() + "/train_log.jsonl");
  CHECK(log.size() <= 1024);
  CHECK(log.ends_with("}\n"));
  CHECK(read_json_lines(output.path() + "/train_log.jsonl").size() >= 1);
  CHECK(read_text(output.path() + "/model.safetensors") == "the old model");
  CHECK(names_in(output.path()) == Words{"model.safetensors", "train_log.jsonl"});
}

TEST_CASE("a model that does not fit leaves the old one") {
  const TemporaryDirectory output;
  std::ofstream(output.path() + "/model.safetensors") << "the old model";
  std::ofstream(output.path() + "/metrics.json") << "{}";
  check_full("2000", finetune_on_full_disk(output.path()),
             "cannot write the file (" + output.path() + "/model.safetensors, byte ");
  CHECK(read_text(output.path() + "/model.safetensors") == "the old model");
  CHECK(read_text(output.path() + "/metrics.json") == "{}");
  CHECK(names_in(output.path()) == Words{"metrics.json", "model.safetensors", "train_log.jsonl"});
}

TEST_CASE("a model in shards that does not fit leaves the old ones") {
  const TemporaryDirectory output;
  const Words shards = {"--max-shard-size", "5MB"};
  REQUIRE(run_ranks_of(BERT_QA, 2, finetune_on_full_disk(output.path()) + shards).code == 0);
  const std::vector<std::string> before = names_in(output.path());
  const std::string shard = output.path() + "/model-00002-of-00003.safetensors";
  const std::string old = read_text(shard);
  check_full("2000", finetune_on_full_disk(output.path()) + shards + Words{"--seed", "7"},
             "cannot write the file (" + shard + ", byte ");
  CHECK(names_in(output.path()) == before);
  CHECK(read_text(shard) == old);
}

TEST_CASE("answers that do not fit leave the old ones") {
  const TemporaryDirectory output;
  std::ofstream(output.path() + "/predictions.json") << "the old answers";
  check_full(
      "1",
      {"predict", "--model", kPretrained, "--qa-head", kHeadFile, "--validation-file", kDevFile,
       "--max-eval-samples", "20", "--overwrite-output-dir", "--output-dir", output.path()},
      "cannot write the file (" + output.path() + "/predictions.json, byte ");
  CHECK(read_text(output.path() + "/predictions.json") == "the old answers");
  CHECK(names_in(output.path()) == Words{"predictions.json"});
}
