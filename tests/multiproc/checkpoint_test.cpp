// Tests checkpoints of ranks that are processes.
#include <doctest/doctest.h>

#include <sstream>

#include "launch.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {

namespace {

void train(int ranks, const ScratchFolder& folder, const std::string& optimizer, int from,
           const std::string& tag) {
  const ProcessResult result =
      run_process({FSDP_RUN, "-n", std::to_string(ranks), TORCH_RANK, "checkpoint", "train",
                   folder.path().string(), optimizer, std::to_string(from), "6", tag});
  CAPTURE(result.err);
  REQUIRE(result.code == 0);
}

}  // namespace

TEST_CASE("a run of 4 processes goes on, on any number of them, as if nothing had been") {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    const ScratchFolder folder;
    train(4, folder, optimizer, 0, "");
    for (const int ranks : {1, 2, 3}) {
      if (optimizer == "sgd" && ranks != 3) continue;
      CAPTURE(optimizer);
      CAPTURE(ranks);
      train(ranks, folder, optimizer, 3, "-again");
      for (const std::string file : {"weights-6", "optimizer-6"}) {
        CHECK(read_whole(folder / file) == read_whole(folder / (file + "-again")));
      }
    }
  }
}

// The file is four times as large as a rank's shard, and so is the part of the file that a rank
// reads. Neither may be in memory as a whole.
TEST_CASE("weights load into a rank's shard and little more, from each format and in any order") {
  constexpr int64_t kUnits = 8;  // units of 16 MiB
  constexpr int64_t kBesides = 32 << 20;
  const ScratchFolder folder;
  const ProcessResult written = run_process(
      {TORCH_RANK, "checkpoint", "write", folder.path().string(), std::to_string(kUnits)});
  CAPTURE(written.err);
  REQUIRE(written.code == 0);
  for (const std::string file : {"model.pt", "transposed.pt", "model.safetensors"}) {
    const ProcessResult result = run_process({FSDP_RUN, "-n", "4", TORCH_RANK, "checkpoint", "load",
                                              (folder / file).string(), std::to_string(kUnits)});
    CAPTURE(file);
    CAPTURE(result.out);
    CAPTURE(result.err);
    REQUIRE(result.code == 0);
    CHECK(lines_with(result.out, " wrong 0\n") == 4);
    std::istringstream lines(result.out);
    std::string word;
    int64_t rank = 0, shard = 0, grown = 0, wrong = 0;
    for (int i = 0; i < 4; ++i) {
      REQUIRE((lines >> word >> rank >> word >> shard >> word >> grown >> word >> wrong));
      CHECK(shard == kUnits * (4 << 20));
      if (!kSanitized) CHECK(grown <= shard + kBesides);  // sanitizers keep freed memory
    }
  }
}

}  // namespace fsdp::testing
