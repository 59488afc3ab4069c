// Runs gpt as a user does, on the text that is shipped with it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/run_program.h"

using namespace fsdp::testing;

namespace {

using Codes = std::set<int>;

const Words kTiny{"--preset", "tiny", "--max-new-tokens", "60", "--prompt", "ROMEO:"};

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

ProcessResult run_gpt(int ranks, const Words& arguments) {
  ProcessResult result = run_ranks_of(GPT, ranks, arguments);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

// Returns the losses in the printed lines: those of the first step, of every fiftieth, and of the
// last.
std::vector<double> losses_of(const std::string& out) {
  std::vector<double> losses;
  for (size_t at = 0; (at = out.find("  loss ", at)) != std::string::npos; ++at) {
    losses.push_back(std::stod(out.substr(at + 7)));
  }
  return losses;
}

std::string generated(const std::string& out) {
  const size_t begin = out.find("\nROMEO:");
  REQUIRE(begin != std::string::npos);
  return out.substr(begin);
}

// Checks that only one rank prints the error, and only once.
void check_refused(const Words& arguments, int code, const std::string& text, int ranks = 2) {
  const ProcessResult result = run_ranks_of(GPT, ranks, arguments);
  INFO(result.out << result.err);
  CHECK(result.code == code);
  const std::string begin = "fsdp: error[" + std::to_string(code) + "] rank 0/";
  const std::string line = result.err.substr(0, result.err.find('\n'));
  CHECK(line.starts_with(begin));
  CHECK(line.find(text) != std::string::npos);
  CHECK(line.find("hint: ") != std::string::npos);
  CHECK(result.err.find(" rank 1/") == std::string::npos);
  CHECK(result.out.empty());
}

}  // namespace

TEST_CASE("gpt learns, and two ranks learn what one does with their batch") {
  const Words sixty_steps = kTiny + Words{"--max-steps", "60"};
  const auto one =
      losses_of(run_gpt(1, sixty_steps + Words{"--per-device-train-batch-size", "16"}).out);
  const auto two =
      losses_of(run_gpt(2, sixty_steps + Words{"--per-device-train-batch-size", "8"}).out);
  REQUIRE(one.size() == 3);
  REQUIRE(two.size() == 3);
  CHECK(one.front() == doctest::Approx(5.55).epsilon(0.03));  // log 256: all bytes are likely
  CHECK(one.back() < 3.5);
  for (size_t i = 0; i < 3; ++i) CHECK(two[i] == doctest::Approx(one[i]).epsilon(1e-3));
}

TEST_CASE("--optim chooses the optimizer") {
  std::set<double> last_losses;
  for (const std::string name :
       {"adamw_torch", "sgd", "lion_32bit", "radam", "lamb", "lars", "adamw_8bit"}) {
    CAPTURE(name);
    const auto losses = losses_of(
        run_gpt(2, kTiny + Words{"--max-steps", "20", "--learning-rate", "0.01", "--optim", name})
            .out);
    REQUIRE(losses.size() == 2);
    CHECK(losses.back() < losses.front());
    last_losses.insert(losses.back());
  }
  CHECK(last_losses.size() == 7);
}

TEST_CASE("--optimizer-in-backward trains without clipping") {
  const Words words = kTiny + Words{"--max-steps", "20", "--optimizer-in-backward"};
  const auto losses = losses_of(run_gpt(2, words).out);
  REQUIRE(losses.size() == 2);
  CHECK(losses.back() < losses.front());
}

TEST_CASE("saved weights write the text that the trained model wrote, on any number of ranks") {
  const TemporaryDirectory place;
  const std::string folder = place.path() + "/new/out", file = folder + "/model.safetensors";
  const Words load{"--weights", file, "--max-steps", "0"};
  const std::string text =
      generated(run_gpt(2, kTiny + Words{"--max-steps", "20", "--output-dir", folder}).out);
  for (const int ranks : {1, 2, 3}) {
    const std::string out = run_gpt(ranks, kTiny + load).out;
    CHECK(generated(out) == text);
    CHECK(losses_of(out).empty());
  }
  CHECK(generated(run_gpt(2, kTiny + Words{"--strategy", "zero2"} + load).out) == text);
  CHECK(generated(run_gpt(1, kTiny + load + Words{"--seed", "43"}).out) != text);
  // Further steps must continue from the loaded weights, not from new ones.
  const Words onwards{"--weights", file, "--max-steps", "1"};
  CHECK(losses_of(run_gpt(1, kTiny + onwards).out).front() < 4.5);

  check_refused({"--preset", "mini", "--weights", file, "--max-steps", "0"}, 65,
                "model.safetensors");
}

TEST_CASE("a wrong command line ends with 64 and the flag") {
  for (const int ranks : {1, 2})
    check_refused({"--typo", "1"}, 64, "there is no flag --typo", ranks);
  check_refused({"--max-step", "1"}, 64, "did you mean --max-steps?");
  check_refused({"--divice", "cpu"}, 64, "did you mean --device?");
  check_refused({"--prefetch", "some"}, 64, "--prefetch cannot be 'some'");
  check_refused({"--max-steps", "few"}, 64, "--max-steps cannot be 'few'");
  check_refused({"--learning-rate", "nan"}, 64, "--learning-rate cannot be 'nan'");
  check_refused({"--temperature", "0"}, 64, "0.01 or more");
  check_refused({"--weights"}, 64, "--weights cannot be ''");
  check_refused({"--preset", "huge"}, 64, "choose from tiny");
  check_refused({"--optim", "adafactor"}, 64, "pass one of adamw_torch, sgd, lion_32bit");
  check_refused({"--lr-scheduler-type", "step"}, 64, "--lr-scheduler-type cannot be 'step'");
  check_refused({"--lr-scheduler-type", "warmup_stable_decay", "--lr-scheduler-kwargs",
                 R"({"num_decay_steps": 2000})"},
                64, "are more than the run's 1000");
  check_refused({"--report-to", "tensorboard"}, 64, "--report-to tensorboard has no folder");
}

TEST_CASE("--report-to tensorboard writes loss, rates and speed into --logging-dir") {
  const TemporaryDirectory place;
  run_gpt(2, kTiny + Words{"--max-steps", "2", "--report-to", "tensorboard", "--logging-dir",
                           place.path() + "/logs"});
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(place.path() + "/logs")) {
    CHECK(events.empty());  // rank 0 writes one file
    std::ifstream file(entry.path(), std::ios::binary);
    events.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (const char* tag : {"train/loss", "train/lr", "train/grad_norm", "train/tokens_per_second",
                          "train/exposed_comm_ms", "train/input_ms"}) {
    CAPTURE(tag);
    CHECK(events.find(tag) != std::string::npos);
  }
}

TEST_CASE("files that cannot be read or written end with their name before the first step") {
  const TemporaryDirectory place;
  const std::string missing = place.path() + "/missing", shortest = place.path() + "/short";
  std::ofstream(shortest) << "64 bytes are one too few for a block of 64 and the byte after it";
  check_refused({"--train-file", missing}, 74, missing);
  check_refused({"--train-file", shortest}, 65, shortest);
  check_refused({"--output-dir", shortest + "/out"}, 73, shortest);
}

TEST_CASE("hostile command lines end with one line and its code, none by a signal") {
  const TemporaryDirectory place;
  const Words flags{"--train-file",    "--preset",         "--block-size",
                    "--weights",       "--max-steps",      "--per-device-train-batch-size",
                    "--learning-rate", "--seed",           "--output-dir",
                    "--prompt",        "--max-new-tokens", "--temperature",
                    "--device",        "--strategy",       "--memory-limit",
                    "--offload",       "--log-level",      "--timeout"};
  const Words values{"",  "-1",   "1e400", "nan",    "0x10", "99999999999999999999",
                     "x", "%s%n", "--",    "--seed", "\xff", place.path()};
  // Each of these is wrong, whichever other arguments the command line has.
  const std::vector<Words> wrong{{"--block-size"},
                                 {"--max-steps=-1"},
                                 {"--train-file", place.path()},
                                 {"--no-such-flag", "1"},
                                 {"--preset", "--help=x"},
                                 {"stray"},
                                 {"--weights=" + place.path(), "--max-steps=0"},
                                 {"--output_dir=/dev/null/out"}};
  std::mt19937 random(20);
  std::vector<Process> processes;
  std::vector<Words> lines;
  for (int i = 0; i < 12; ++i) {
    Words words{GPT, "--device=cpu"};
    for (size_t given = random() % 5; i >= std::ssize(wrong) && given > 0; --given) {
      words.push_back(flags[random() % flags.size()]);
      if (random() % 4 > 0) words.push_back(values[random() % values.size()]);
    }
    words = words + wrong[i % wrong.size()];
    lines.push_back(words);
    processes.emplace_back(words);
  }
  for (size_t i = 0; i < processes.size(); ++i) {
    CAPTURE(fmt::format("{}", fmt::join(lines[i], " ")));
    const ProcessResult result = processes[i].wait();
    CAPTURE(result.err);
    CHECK(result.signal == 0);
    const std::string begin = "fsdp: error[" + std::to_string(result.code) + "] rank 0/1 ";
    CHECK(result.err.starts_with(begin));
    CHECK(std::ranges::count(result.err, '\n') == 1);
    CHECK(Codes{64, 65, 73, 74, 78}.contains(result.code));
    CHECK(result.out.empty());
  }
}

TEST_CASE("gpt's flags are spelled as the engine's: with = or a space, hyphens or underscores") {
  const std::string out =
      run_gpt(1, {"--preset=tiny", "--max_steps=0", "--max_new_tokens=10", "--prompt=ROMEO:"}).out;
  CHECK(out.starts_with("\nROMEO:"));
}

TEST_CASE("gpt says what a step takes in a line, or in tables, and sums up the training") {
  const Words two_steps = kTiny + Words{"--max-steps", "2"};
  const std::string line = run_gpt(2, two_steps).out;
  CHECK(line.find("\ntrained on 64 samples in 2 steps, ") != std::string::npos);
  CHECK(line.find(" a rank at peak, as planned\n") != std::string::npos);
  CHECK(line.starts_with("full-shard on 2 ranks, "));
  CHECK(line.find("bytes of") == std::string::npos);
  const std::string tables = run_gpt(2, two_steps + Words{"--log-level", "debug"}).out;
  CHECK(tables.starts_with("bytes of one rank "));
  CHECK(tables.find("\nbytes of this rank ") != std::string::npos);
}

TEST_CASE("--help is printed once, with the flags and their defaults") {
  const std::string out = run_gpt(2, {"--help"}).out;
  const size_t found = out.find("--learning-rate");
  CHECK(found != std::string::npos);
  CHECK(out.find("--learning-rate", found + 1) == std::string::npos);
  CHECK(out.find("[0.002]") != std::string::npos);
  CHECK(out.find("--device NAME") != std::string::npos);
}
