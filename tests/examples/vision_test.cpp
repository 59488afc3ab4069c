// Runs vision as a user does, on the digits that are shipped with it.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/run_program.h"

using namespace fsdp::testing;

namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the number after the last `word` of a program's output.
double last(const std::string& out, const std::string& word) {
  const size_t at = out.rfind(word + " ");
  REQUIRE(at != std::string::npos);
  return std::stod(out.substr(at + word.size() + 1));
}

ProcessResult run_vision(const Words& arguments, int ranks = 2) {
  ProcessResult result = run_ranks_of(VISION, ranks, arguments);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

void check_refused(const Words& arguments, int code, const std::string& text) {
  const ProcessResult result = run_ranks_of(VISION, 2, arguments);
  INFO(result.out << result.err);
  CHECK(result.code == code);
  CHECK(result.err.starts_with("fsdp: error[" + std::to_string(code) + "] rank 0/2"));
  CHECK(result.err.find(text) != std::string::npos);
  CHECK(result.err.find(" rank 1/") == std::string::npos);
  CHECK(result.out.empty());
}

}  // namespace

TEST_CASE("vision reads 95 of 100 digits") {
  const ProcessResult result = run_vision({});
  INFO(result.out);
  CHECK(last(result.out, "best") >= 0.95);
  CHECK(last(result.out, "lr") < 1e-8);  // the end of the cosine
}

TEST_CASE("vision has the flag --optim") {
  CHECK(last(run_vision({"--num-train-epochs=4", "--optim=lion_32bit", "--learning-rate=5e-4"}).out,
             "best") >= 0.8);
  check_refused({"--optim=adam"}, 64, "pass one of adamw_torch, sgd, lion_32bit");
}

TEST_CASE("a run that SIGTERM stopped resumes, and its best model has the same bytes") {
  const TemporaryDirectory place;
  const Words often{"--num-train-epochs=6", "--gradient-accumulation-steps=2", "--dropout=0.1"};
  const auto into = [&](const std::string& folder, const Words& more = {}) {
    Words words = often;
    words.insert(words.end(), {"--output-dir", place.path() + "/" + folder});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::string whole = run_vision(into("whole")).out;

  const std::string stopped = place.path() + "/stopped";
  Words command{FSDP_RUN, "-n", "2", VISION};
  for (const std::string& word : with_device(into("stopped"))) command.push_back(word);
  Process process(command);
  REQUIRE(process.read_until("epoch 1/6"));
  kill(process.pid(), SIGTERM);
  const ProcessResult result = process.wait();
  INFO(result.out << result.err);
  CHECK(result.code == 0);
  CHECK(result.out.find("epoch 6/6") == std::string::npos);
  const ProcessResult resumed = run_vision(into("stopped", {"--resume", "auto"}));
  CAPTURE(resumed.err);
  CHECK(resumed.err.find("resumed from step ") != std::string::npos);
  CHECK(resumed.out.find("epoch 1/6") == std::string::npos);
  CHECK(resumed.out.find("\ntrained on 9000 samples in 282 steps, ") != std::string::npos);
  CHECK(last(resumed.out, "accuracy") == last(whole, "accuracy"));
  CHECK(last(resumed.out, "loss") == last(whole, "loss"));
  CHECK(bytes_of(stopped + "/model.safetensors") ==
        bytes_of(place.path() + "/whole/model.safetensors"));
}

TEST_CASE("a run stops early at the same epoch on one to three ranks, and after a resume") {
  // The threshold lets no evaluation count as an improvement after the first one.
  const Words early{"--num-train-epochs=8", "--param-dtype=float32", "--early-stopping-patience=2",
                    "--early-stopping-threshold=1"};
  for (const int ranks : {1, 2, 3}) {  // 297 digits are uneven on two ranks
    CAPTURE(ranks);
    const std::string out = run_vision(early, ranks).out;
    CHECK(out.find("epoch 3/8") != std::string::npos);
    CHECK(out.find("epoch 4/8") == std::string::npos);
    CHECK(out.find("stopped early after step 141\n") != std::string::npos);
    CHECK(last(out, "best") > 0.8);
  }
  const TemporaryDirectory place;
  const auto into = [&](const std::string& folder, const Words& more) {
    Words words = early;
    words.insert(words.end(), {"--output-dir", place.path() + "/" + folder});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words by_loss{"--eval-strategy=steps", "--eval-steps=30", "--metric-for-best-model=loss",
                      "--early-stopping-threshold=100", "--report-to=tensorboard"};
  run_vision(into("whole", by_loss));
  Words saves = by_loss;
  saves.insert(saves.end(), {"--save-steps=40", "--early-stopping-patience=1"});
  const std::string first = run_vision(into("resumed", saves)).out;
  CHECK(first.find("stopped early after step 60\n") != std::string::npos);
  Words again = by_loss;
  again.insert(again.end(), {"--resume", "auto"});
  const ProcessResult resumed = run_vision(into("resumed", again));
  CHECK(resumed.err.find("resumed from step 40 ") != std::string::npos);
  CHECK(resumed.out.find("stopped early after step 90\n") != std::string::npos);
  CHECK(bytes_of(place.path() + "/resumed/model.safetensors") ==
        bytes_of(place.path() + "/whole/model.safetensors"));
}

TEST_CASE("vision refuses wrong flags with 64 and files without digits with 65") {
  check_refused({"--num-train-epoch", "1"}, 64, "did you mean --num-train-epochs?");
  check_refused({"--dropout", "1.5"}, 64, "--dropout cannot be '1.5'");
  check_refused({"--save-steps", "5"}, 64, "--save-steps has no folder");
  check_refused({"--eval-steps", "5"}, 64,
                "--eval-strategy steps and --eval-steps need each other");
  check_refused({"--metric-for-best-model", "f1"}, 64, "use accuracy or loss");
  check_refused({"--data", "/proc/self/status"}, 65, "65 bytes");
  check_refused({"--data", "/proc/self"}, 74, "cannot read /proc/self");
}
