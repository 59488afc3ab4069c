// Resumes gpt and vision after a step, and compares the state after the last step with that of a
// run that was not stopped.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/long_run.h"
#include "support/run_program.h"

using namespace fsdp::testing;

namespace {

struct Example {
  std::string program;
  Words arguments;
  int steps;
  int ranks = 2;
  // The steps after which a run resumes: the first, the seventh, one before and one after an
  // epoch's end, and one in a later epoch.
  std::vector<int> stops;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

ProcessResult run_into(const Example& example, const std::string& output, const Words& more) {
  Words words = example.arguments;
  words.insert(words.end(), {"--output-dir", output});
  words.insert(words.end(), more.begin(), more.end());
  ProcessResult result = run_ranks_of(example.program, example.ranks, words);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

// Returns the bytes of a checkpoint's tensors: weights, moments, counts and random states.
std::string tensors_of(const Example& example, const std::string& checkpoint) {
  std::string bytes;
  for (int rank = 0; rank < example.ranks; ++rank) {
    bytes += bytes_of(
        fmt::format("{}/shard-{:05}-of-{:05}.safetensors", checkpoint, rank, example.ranks));
  }
  return bytes;
}

std::string step_folder(const std::string& output, int step) {
  return fmt::format("{}/checkpoints/step-{:08}", output, step);
}

void check(const Example& example) {
  const TemporaryDirectory place;
  const std::string plain = place.path() + "/plain", saving = place.path() + "/saving";
  run_into(example, plain, {});
  run_into(example, saving, {"--save-steps=1"});
  CHECK(bytes_of(saving + "/model.safetensors") == bytes_of(plain + "/model.safetensors"));
  const std::string whole = tensors_of(example, step_folder(saving, example.steps));
  const std::vector<int> some{example.stops[1]};
  for (const int stop : is_long_run() ? example.stops : some) {
    CAPTURE(stop);
    const std::string resumed = place.path() + "/resumed-" + std::to_string(stop);
    const ProcessResult result = run_into(
        example, resumed,
        {"--resume", step_folder(saving, stop), fmt::format("--save-steps={}", example.steps)});
    CHECK(result.err.find(fmt::format("resumed from step {} ", stop)) != std::string::npos);
    CHECK(tensors_of(example, step_folder(resumed, example.steps)) == whole);
  }
}

}  // namespace

TEST_CASE("gpt resumes exactly") {
  const TemporaryDirectory place;
  const std::string text = place.path() + "/text";
  // 43 samples of blocks of 32 bytes. A step takes 8 of them, so an epoch has six steps.
  std::ofstream(text) << std::string(32, 'a') + "to be or not to be, that is the question: 1";
  check({.program = GPT,
         .arguments = {"--preset", "tiny", "--train-file", text, "--max-steps", "15",
                       "--per-device-train-batch-size", "4", "--block-size", "32",
                       "--max-new-tokens", "20"},
         .steps = 15,
         .stops = {1, 7, 5, 8, 13}});
}

TEST_CASE("vision resumes exactly") {
  // An epoch has three steps.
  check({.program = VISION,
         .arguments = {"--num-train-epochs=4", "--batch-size=500",
                       "--gradient-accumulation-steps=2", "--dropout=0.1"},
         .steps = 12,
         .stops = {1, 7, 2, 4, 10}});
}
