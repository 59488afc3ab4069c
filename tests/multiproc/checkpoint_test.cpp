// Checkpoints of ranks that are processes.
#include <doctest/doctest.h>

#include "launch.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {

namespace {

void train(int ranks, const ScratchFolder& folder, const std::string& optimizer, int from,
           const std::string& tag) {
  const ProcessResult result =
      run_process({FSDP_RUN, "-n", std::to_string(ranks), CHECKPOINT_RANK, folder.path().string(),
                   optimizer, std::to_string(from), "6", tag});
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

}  // namespace fsdp::testing
