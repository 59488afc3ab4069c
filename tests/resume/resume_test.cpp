// Runs trainings that are stopped and resumed, as pairs of runs.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

using Words = std::vector<std::string>;

constexpr int kSteps = 12;

// A row of pairs.txt.
struct Pair {
  bool is_marked = false;
  std::string ranks, groups, strategy, dtype, optimizer, schedule, freezes, offload;
  int stop = 0;
};

std::vector<Pair> read_pairs() {
  std::ifstream file(RESUME_PAIRS);
  std::vector<Pair> pairs;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    Pair pair{.is_marked = line.starts_with('*')};
    std::istringstream words(line.substr(1));
    words >> pair.ranks >> pair.groups >> pair.strategy >> pair.dtype >> pair.optimizer >>
        pair.schedule >> pair.freezes >> pair.offload >> pair.stop;
    REQUIRE(words);
    pairs.push_back(pair);
  }
  return pairs;
}

Words command_of(const Pair& pair, const ScratchFolder& folder, const std::string& name) {
  return {FSDP_RUN,        "-n",
          pair.ranks,      RESUME_RANK,
          "--steps",       std::to_string(kSteps),
          "--device",      "cpu",
          "--strategy",    pair.strategy,
          "--replicate",   pair.groups,
          "--param-dtype", pair.dtype,
          "--offload",     pair.offload,
          "--optimizer",   pair.optimizer,
          "--schedule",    pair.schedule,
          "--freezes",     pair.freezes,
          "--save-dir",    (folder / "checkpoints").string(),
          "--weights",     (folder / name).string()};
}

ProcessResult run(Words command, const Words& more) {
  command.insert(command.end(), more.begin(), more.end());
  return run_process(command);
}

// Returns the lines of steps after `first`, without those about the samples of the other ranks.
std::string lines_after(const std::string& out, int first) {
  std::istringstream lines(out);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("step ") && std::stoi(line.substr(5)) > first) kept += line + '\n';
  }
  return kept;
}

}  // namespace

TEST_CASE(
    "a run that resumes has every later number and the final weights of the undisturbed run") {
  int tried = 0;
  for (const Pair& pair : read_pairs()) {
    if (!pair.is_marked && !is_long_run()) continue;
    CAPTURE(pair.ranks);
    CAPTURE(pair.strategy);
    CAPTURE(pair.dtype);
    CAPTURE(pair.optimizer);
    CAPTURE(pair.schedule);
    CAPTURE(pair.stop);
    const ScratchFolder folder;
    const ProcessResult whole =
        run(command_of(pair, folder, "whole"), {"--save-steps", std::to_string(pair.stop),
                                                "--save-async", tried % 2 == 0 ? "true" : "false"});
    INFO(whole.err);
    REQUIRE(whole.code == 0);
    char name[32];
    std::snprintf(name, sizeof name, "step-%08d", pair.stop);
    const ProcessResult resumed = run(command_of(pair, folder, "resumed"),
                                      {"--resume", (folder / "checkpoints" / name).string()});
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(resumed.err.find("resumed from step " + std::to_string(pair.stop)) != std::string::npos);
    CHECK(lines_after(resumed.out, 0) == lines_after(whole.out, pair.stop));
    CHECK(read_whole(folder / "resumed") == read_whole(folder / "whole"));
    ++tried;
  }
  CHECK(tried >= 8);
}

// The global batch stays, so the ranks divide the same samples among them in another way.
TEST_CASE("over 1, 2, 4, 3, 8 and 1 ranks each sample is used once per epoch") {
  const ScratchFolder folder;
  std::map<std::string, int> uses;  // "EPOCH SAMPLE"
  int step = 0;
  Pair pair{.groups = "1",
            .strategy = "full-shard",
            .dtype = "float32",
            .optimizer = "adamw",
            .schedule = "cosine",
            .freezes = "0",
            .offload = "false"};
  for (const std::string ranks : {"1", "2", "4", "3", "8", "1"}) {
    pair.ranks = ranks;
    step += 2;
    const ProcessResult leg =
        run(command_of(pair, folder, "weights"),
            {"--steps", std::to_string(step), "--save-steps", "2", "--resume", "auto"});
    INFO(leg.err);
    REQUIRE(leg.code == 0);
    std::istringstream lines(leg.out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("used ")) continue;
      std::istringstream words(line.substr(5));
      int at = 0;
      char colon = 0;
      words >> at >> colon;
      for (std::string sample; words >> sample;) {
        ++uses[std::to_string((at - 1) / 4) + " " + sample];
      }
    }
  }
  CHECK(uses.size() == 3 * 29);
  for (const auto& [sample, count] : uses) {
    CAPTURE(sample);
    CHECK(count == 1);
  }
}

}  // namespace fsdp::testing
