// A gradient that is not finite: the step is skipped on all ranks, and the parameter is named.
#include <fsdp/data.h>

#include <array>
#include <limits>

#include "program.h"

using namespace fsdp::testing;

TEST_CASE("a step without a finite gradient is skipped and says where the first one was") {
  const TemporaryDirectory place;
  const std::string head = place.path() + "/head.safetensors";
  {
    std::array<float, 2 * 128> weight{};
    const std::array bias{std::numeric_limits<float>::infinity(), 0.0F};
    fsdp::SafetensorsWriter writer(head, {{.name = "qa_outputs.weight", .shape = {2, 128}},
                                          {.name = "qa_outputs.bias", .shape = {2}}});
    writer.append("qa_outputs.weight", std::as_bytes(std::span(weight)));
    writer.append("qa_outputs.bias", std::as_bytes(std::span(bias)));
    writer.commit();
  }
  const ProcessResult result = run_ranks_of(
      BERT_QA, 2,
      {"finetune", "--preset", "tiny", "--qa-head", head, "--data", "synthetic", "--max-steps", "2",
       "--max-seq-length", "32", "--output-dir", place.path() + "/out"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const auto log = read_json_lines(place.path() + "/out/train_log.jsonl");
  REQUIRE(log.size() == 2);
  for (const nlohmann::json& line : log) {
    CHECK(line["skipped"] == true);
    const std::string named = line["first_nonfinite"];
    CHECK(named == "unit '(root)', parameter 'bert.embeddings.position_embeddings.weight'");
    const std::string said = "step " + std::to_string(line["step"].get<int>()) +
                             " was skipped: its gradient is not finite, first in " + named + "\n";
    CHECK(result.out.find(said) != std::string::npos);
  }
}
