// Tests ranks in groups. Failures must be reported as they are without groups.
#include <fsdp/options.h>

#include "program.h"

using namespace fsdp::testing;

namespace {

// Trains four ranks in two groups. `fault` makes one of them fail.
ProcessResult train(fsdp::Strategy strategy, const Words& fault, const Words& shell = {},
                    bool saves_memory = false) {
  const char* const saves = saves_memory ? "1" : "0";
  return run_process(Words{FSDP_RUN, "-n", "4", "--all-errors"} + shell +
                         Words{TRAINING_RANK, "100000", "60000"} + fault,
                     {{"TRAINING_STRATEGY", std::to_string(static_cast<int>(strategy))},
                      {"TRAINING_SHARD", "2"},
                      {"TRAINING_RECOMPUTE", saves},
                      {"TRAINING_OFFLOAD", saves}},
                     std::chrono::seconds(60));
}

// Returns a shell command that runs `script` on each rank before the program starts.
Words shell(const std::string& script) { return {"sh", "-c", script + " exec \"$@\"", "sh"}; }

int lines_with(const std::string& text, const std::string& needle) {
  int count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    count += line.find(needle) != std::string::npos ? 1 : 0;
  }
  return count;
}

// Checks that rank 3 was killed and that each other rank names it once.
void check_named_by_all(const ProcessResult& result) {
  INFO(result.err);
  CHECK(result.code == 75);
  CHECK(lines_with(result.err, "rank 3 was killed by signal 9 (SIGKILL)") == 4);
  for (const char* survivor : {"0/4", "1/4", "2/4"}) {
    CHECK(lines_with(result.err, "fsdp: error[75] rank " + std::string(survivor)) == 1);
  }
}

}  // namespace

TEST_CASE("a rank of a group that is killed is named by the ranks of all groups") {
  // The first two strategies use different operations for their inter-group reductions.
  for (const auto& [strategy, phase] : {std::pair{fsdp::Strategy::kHybridShard, "reduce"},
                                        {fsdp::Strategy::kHfsdp, "reduce"},
                                        {fsdp::Strategy::kHfsdp, "gather"},
                                        {fsdp::Strategy::kHpz, "gather"}}) {
    CAPTURE(static_cast<int>(strategy));
    CAPTURE(phase);
    check_named_by_all(train(strategy, {"kill", "3", "3", phase, "1", "0"}));
  }
}

TEST_CASE("with offload and recomputation a rank that is killed is named in every row") {
  using fsdp::Strategy;
  int row = 0;
  for (const auto& [strategy, phase] : {std::pair{Strategy::kFullShard, "gather"},
                                        {Strategy::kFullShard, "optimizer"},
                                        {Strategy::kZero2, "backward"},
                                        {Strategy::kZero1, "optimizer"},
                                        {Strategy::kReplicate, "reduce"},
                                        {Strategy::kHybridShard, "reduce"},
                                        {Strategy::kHfsdp, "gather"},
                                        {Strategy::kHpz, "backward"}}) {
    if (row++ % 3 != 0 && !is_long_run()) continue;
    CAPTURE(static_cast<int>(strategy));
    CAPTURE(phase);
    check_named_by_all(
        train(strategy, {"kill", "3", "3", phase, "1", "0"}, {}, /*saves_memory=*/true));
  }
}

TEST_CASE("ranks that do not agree on strategy or groups are refused with both sides") {
  const ProcessResult strategy =
      train(fsdp::Strategy::kHybridShard, {},
            shell("if [ $RANK = 2 ]; then export TRAINING_STRATEGY=5; fi;"));
  INFO(strategy.err);
  CHECK(strategy.code == 78);
  CHECK(lines_with(strategy.err,
                   "rank 0 has 'strategy hybrid-shard', rank 2 has 'strategy hfsdp'") == 4);
  const ProcessResult groups = train(fsdp::Strategy::kHybridShard, {},
                                     shell("if [ $RANK = 2 ]; then export TRAINING_SHARD=4; fi;"));
  INFO(groups.err);
  CHECK(groups.code == 78);
  CHECK(lines_with(groups.err, "rank 0 has 'mesh 2 × 2', rank 2 has 'mesh 1 × 4'") == 4);
}

TEST_CASE("axes that do not fit the ranks end with 78 and one line") {
  const ProcessResult result =
      train(fsdp::Strategy::kHybridShard, {}, shell("export TRAINING_SHARD=3;"));
  INFO(result.err);
  CHECK(result.code == 78);
  CHECK(lines_with(result.err, "4 ranks cannot be cut into groups of 3") == 4);
}
