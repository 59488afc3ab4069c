// Tests non-finite values. In a file they are refused. If a gradient has one, all ranks skip the
// step and name the parameter. If all steps were skipped, no model is written.
#include <fsdp/safetensors.h>

#include <array>
#include <limits>

#include "program.h"

using namespace fsdp::testing;

namespace {

// Writes a head for the tiny model. All weights are `weight`, except one weight in rank 1's half.
std::string write_head(const std::string& folder, float weight, float odd) {
  const std::string file = folder + "/head.safetensors";
  std::array<float, 2 * 128> weights{};
  weights.fill(weight);
  weights[200] = odd;
  const std::array bias{0.0F, 0.0F};
  fsdp::SafetensorsWriter writer(file, {{.name = "qa_outputs.weight", .shape = {2, 128}},
                                        {.name = "qa_outputs.bias", .shape = {2}}});
  writer.append("qa_outputs.weight", std::as_bytes(std::span(weights)));
  writer.append("qa_outputs.bias", std::as_bytes(std::span(bias)));
  writer.commit();
  return file;
}

ProcessResult finetune_from(const std::string& head, const std::string& output) {
  return run_ranks_of(BERT_QA, 2,
                      {"finetune", "--preset", "tiny", "--qa-head", head, "--data", "synthetic",
                       "--max-steps", "2", "--max-seq-length", "32", "--output-dir", output});
}

}  // namespace

TEST_CASE("skipped steps are named, and a run of nothing else ends with 70 and no model") {
  const TemporaryDirectory place;
  // This is the largest float, so logits overflow.
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::string output = place.path() + "/out";
  const ProcessResult result = finetune_from(write_head(place.path(), kLargest, kLargest), output);
  INFO(result.out << result.err);
  CHECK(result.code == 70);
  const auto log = read_json_lines(output + "/train_log.jsonl");
  REQUIRE(log.size() == 2);
  const std::string first = "unit '(root)', parameter 'bert.embeddings.position_embeddings.weight'";
  for (const nlohmann::json& line : log) {
    CHECK(line["skipped"] == true);
    CHECK(line["first_nonfinite"] == first);
    const std::string said = "step " + std::to_string(line["step"].get<int>()) +
                             " was skipped: its gradient is not finite, first in " + first + "\n";
    CHECK(result.out.find(said) != std::string::npos);
  }
  CHECK(result.err.starts_with("fsdp: error[70] rank 0/2 host "));
  CHECK(
      result.err.find("nothing was learned: all 2 steps were skipped (no model was written); the "
                      "gradients of these steps were not finite; the first such gradient was in " +
                      first + "; hint: ") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(output + "/model.safetensors"));
  CHECK_FALSE(std::filesystem::exists(output + "/metrics.json"));
}

TEST_CASE("weights that are not finite are refused with 65, file, tensor and element") {
  const TemporaryDirectory place;
  struct Case {
    float value;
    std::string text;
  };
  for (const auto& [value, text] : {Case{std::numeric_limits<float>::quiet_NaN(), "nan"},
                                    Case{-std::numeric_limits<float>::infinity(), "-inf"}}) {
    const std::string head = write_head(place.path(), 0.0F, value);
    const ProcessResult result = finetune_from(head, place.path() + "/out");
    INFO(result.err);
    CHECK(result.code == 65);
    CHECK(result.err.starts_with("fsdp: error[65] rank "));
    CHECK(result.err.find("tensor 'qa_outputs.weight' is not finite: element 200 is " + text +
                          " (" + head + "); hint: ") != std::string::npos);
    CHECK(result.out.find("step ") == std::string::npos);
  }
}

TEST_CASE("a model with a weight that is not finite is not evaluated either") {
  const TemporaryDirectory place;
  const std::string model = place.path() + "/model";
  REQUIRE(run_ranks_of(
              BERT_QA, 2,
              {"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file",
               kTrainFile, "--max-train-samples", "4", "--max-steps", "1", "--output-dir", model})
              .code == 0);
  std::fstream file(model + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);  // in the last tensor, qa_outputs.weight
  const float nan = std::numeric_limits<float>::quiet_NaN();
  file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  file.close();
  const ProcessResult result =
      run_ranks_of(BERT_QA, 2, {"evaluate", "--model", model, "--validation-file", kDevFile});
  INFO(result.err);
  CHECK(result.code == 65);
  CHECK(result.err.find("tensor 'qa_outputs.weight' is not finite: element 255 is nan (" + model +
                        "/model.safetensors)") != std::string::npos);
}
