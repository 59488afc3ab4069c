// Tests a model that does not fit on one rank, from `init` to the exported folder. It is the same
// as tools/demo --large, but with a small model and a limit in the same proportion to the model.
#include "bert_qa/tests/support/error_texts.h"
#include "program.h"

using namespace fsdp::testing;

namespace {

constexpr int kSteps = 3;

Words finetune_from(const std::string& model, const std::string& output, const Words& more) {
  return Words{"finetune",
               "--model",
               model,
               "--data",
               "synthetic",
               "--max-seq-length",
               "64",
               "--per-device-train-batch-size",
               "2",
               "--max-steps",
               std::to_string(kSteps),
               "--max-shard-size",
               "5MB",
               "--dropout",
               "0",
               "--num-threads",
               "1",
               "--output-dir",
               output} +
         more;
}

void init(const std::string& output, int ranks, const Words& more = {}) {
  const ProcessResult result =
      run_ranks_of(BERT_QA, ranks,
                   Words{"init", "--preset", "tiny", "--vocab-file", kVocabFile, "--max-shard-size",
                         "5MB", "--output-dir", output} +
                       more);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
}

int64_t planned_bytes(const std::string& model, int ranks) {
  const TemporaryDirectory output;
  const ProcessResult run =
      run_ranks_of(BERT_QA, ranks, finetune_from(model, output.path(), {"--memory-limit", "1GiB"}));
  INFO(run.out << run.err);
  REQUIRE(run.code == 0);
  return read_json(output.path() + "/metrics.json")["planned_device_bytes"];
}

// Returns the text between `before` and `after` in the first line that contains both.
std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.find(before);
  REQUIRE(begin != std::string::npos);
  const size_t end = text.find(after, begin + before.size());
  REQUIRE(end != std::string::npos);
  return text.substr(begin + before.size(), end - begin - before.size());
}

void check_shards(const std::string& folder) {
  CHECK(std::filesystem::exists(folder + "/model.safetensors.index.json"));
  CHECK(std::filesystem::exists(folder + "/model-00003-of-00003.safetensors"));
  CHECK_FALSE(std::filesystem::exists(folder + "/model.safetensors"));
}

// Checks that the model trains within the limit and that the memory is as planned.
nlohmann::json check_trains(const std::string& model, int ranks, const std::string& output,
                            const Words& flags) {
  CAPTURE(ranks);
  const ProcessResult run = run_ranks_of(BERT_QA, ranks, finetune_from(model, output, flags));
  INFO(run.out << run.err);
  REQUIRE(run.code == 0);
  nlohmann::json metrics = read_json(output + "/metrics.json");
  CHECK(metrics["train_steps"] == kSteps);
  CHECK(metrics["peak_memory_bytes"] == metrics["planned_engine_bytes"]);
  const double peak = metrics["peak_device_bytes"], planned = metrics["planned_device_bytes"];
  CHECK(peak <= metrics["memory_limit"].get<double>());
  CHECK(peak == doctest::Approx(planned).epsilon(0.05));
  CHECK(run.out.find("of which the engine's buffers are the plan's, to the byte\n") !=
        std::string::npos);
  CHECK(run.out.find("are not the plan's") == std::string::npos);  // also not at the end
  check_shards(output);
  return metrics;
}

}  // namespace

TEST_CASE(
    "a model too large for one rank is refused there, and trains on two, four, or offloaded") {
  const TemporaryDirectory place;
  const std::string model = place.path() + "/model";
  init(model, 1, {"--memory-limit", "40MiB"});
  check_shards(model);
  const int64_t limit = (planned_bytes(model, 1) + planned_bytes(model, 2)) / 2;
  const Words capped = {"--memory-limit", std::to_string(limit)};

  const std::string refused_place = place.path() + "/refused";
  const ProcessResult refused =
      run_ranks_of(BERT_QA, 1, finetune_from(model, refused_place, capped));
  INFO(refused.err);
  CHECK(refused.code == 78);
  const std::string planned_end = between(refused.err, "; memory would run out in: ", ";");
  CHECK(between(refused.err, kRemedies, "\n").find("--offload") != std::string::npos);

  const ProcessResult forced =
      run_ranks_of(BERT_QA, 1, finetune_from(model, refused_place, capped + Words{"--force"}));
  INFO(forced.err);
  CHECK(forced.code == 70);
  const std::string measured_end = between(forced.err, " leaves ", "); held: ");
  CHECK(measured_end.substr(measured_end.find('(') + 1) == planned_end);
  CHECK(between(forced.out, "more than the memory limit from: ", "\n") == planned_end);

  check_trains(model, 2, place.path() + "/two", capped);
  check_trains(place.path() + "/two", 4, place.path() + "/four", capped);  // the exported model
  const nlohmann::json offloaded =
      check_trains(model, 1, place.path() + "/offloaded", capped + Words{"--offload"});
  CHECK(offloaded["peak_host_bytes"] == offloaded["planned_host_bytes"]);
  CHECK(offloaded["peak_host_bytes"] > limit);
}

TEST_CASE("a BERT of 1.3 billion parameters is refused on one rank of 16 GiB") {
  const TemporaryDirectory output;
  const ProcessResult refused =
      run_ranks_of(BERT_QA, 1,
                   {"finetune", "--preset", "1.3b", "--data", "synthetic", "--max-seq-length",
                    "128", "--per-device-train-batch-size", "1", "--recompute", "--memory-limit",
                    "16GiB", "--output-dir", output.path()});
  INFO(refused.err);
  CHECK(refused.code == 78);
  CHECK(refused.err.find("a step needs 19.2 GiB" + kStepBeyond + "16.0 GiB") != std::string::npos);
  CHECK(refused.err.find(kRemedies + "--offload, ") != std::string::npos);
}

TEST_CASE("init writes the same bytes on any number of ranks, and others with another seed") {
  const TemporaryDirectory place;
  const std::string one = place.path() + "/one", three = place.path() + "/three",
                    other = place.path() + "/other";
  init(one, 1);
  init(three, 3);
  init(other, 1, {"--seed", "7"});
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(one)) {
    const std::string name = entry.path().filename();
    CAPTURE(name);
    CHECK(read_text(entry.path()) == read_text(three + "/" + name));
    ++files;
  }
  CHECK(files == 8);
  for (const char* name : {"config.json", "vocab.txt", "model.safetensors.index.json"}) {
    CHECK(read_text(one + "/" + name) == read_text(other + "/" + name));
  }
  const std::string shard = "/model-00002-of-00003.safetensors";
  CHECK(read_text(one + shard) != read_text(other + shard));
}
