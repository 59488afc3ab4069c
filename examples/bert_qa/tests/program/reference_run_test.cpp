// Tests the reference run. It compares each step of the demo's model with Python transformers on
// one process. benchmarks/peers/reference_run.py has recorded the expected values in
// examples/bert_qa/tests/records/reference_run.json.
#include <cmath>

#include "program.h"

using namespace fsdp::testing;

namespace {

// The relative tolerance. Python's own results differ by 4e-7 if its number of threads changes. Its
// norm is summed in float32 and has an error of 6e-6.
constexpr double kTolerance = 1e-5;

double relative_difference(double ours, double theirs) { return std::abs(ours / theirs - 1); }

void check_reference(int ranks, int steps) {
  CAPTURE(ranks);
  const TemporaryDirectory output;
  const ProcessResult result = run_ranks_of(BERT_QA, ranks,
                                            {"finetune",
                                             "--model",
                                             kPretrained,
                                             "--qa-head",
                                             kHeadFile,
                                             "--train-file",
                                             kTrainFile,
                                             "--output-dir",
                                             output.path(),
                                             "--no-shuffle",
                                             "--dataloader-drop-last",
                                             "--dropout",
                                             "0",
                                             "--learning-rate",
                                             "1e-4",
                                             "--num-train-epochs",
                                             "3",
                                             "--per-device-train-batch-size",
                                             std::to_string(8 / ranks),
                                             "--stop-after-step",
                                             std::to_string(steps)});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const nlohmann::json record =
      read_json(kSource / "examples/bert_qa/tests/records/reference_run.json");
  const std::vector<nlohmann::json> log = read_json_lines(output.path() + "/train_log.jsonl");
  REQUIRE(log.size() == static_cast<size_t>(steps));
  for (int step = 0; step < steps; ++step) {
    CAPTURE(step);
    CHECK(relative_difference(log[step]["loss"], record["losses"][step]) < kTolerance);
    CHECK(relative_difference(log[step]["grad_norm"], record["grad_norms"][step]) < kTolerance);
  }
}

}  // namespace

TEST_CASE("one rank follows transformers' losses and gradient norms for ten steps") {
  check_reference(1, 10);
}

// If windows were assigned to wrong ranks, or losses weighted wrongly, each step would differ.
TEST_CASE("two and four ranks follow them for four steps") {
  check_reference(2, is_long_run() ? 4 : 2);
  if (is_long_run()) check_reference(4, 4);
}
