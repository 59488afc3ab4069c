#include "parity/support/bert_parity.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/long_run.h"
#include "support/run_process.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

TrainedBert train_on_threads(int world, ParityOptimizer optimizer) {
  TrainedBert trained;
  run_torch_ranks(world, [&](Mesh mesh) {
    TrainedBert own = train_sharded(mesh, PARITY_MODEL, optimizer);
    if (mesh.rank() == 0) trained = std::move(own);
  });
  return trained;
}

// A test below starts this case as a process.
TEST_CASE("one rank of the process parity test" * doctest::skip()) {
  at::set_num_threads(1);
  const bool in_groups = std::getenv("PARITY_GROUPS") != nullptr;
  const Mesh mesh = Mesh::from_env({.shard = in_groups ? 2 : 0});
  const bool map_shards = std::getenv("PARITY_GATHERS") == nullptr;
  const TrainedBert trained =
      train_sharded(mesh, PARITY_MODEL, ParityOptimizer::kSgd,
                    {.strategy = in_groups ? Strategy::kHybridShard : Strategy::kFullShard,
                     .tuning = {.map_shards = map_shards}});
  if (mesh.rank() != 0) return;
  std::ofstream(std::getenv("PARITY_BITS")) << bits_of(trained);
  // Shards are mapped if they have whole pages. On 4 ranks the root's shards are too small.
  const int shards = mesh.size(Axis::kShard);
  const bool gathers = shards > 1 && (!map_shards || shards == 4);
  CHECK((trained.gathers > 0) == gathers);
}

// Trains on processes. Returns bits_of the result of rank 0.
std::string train_on_processes(int world, const std::string& variable = {}) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/bits";
  std::map<std::string, std::string> variables = {{"OMP_NUM_THREADS", "1"}, {"PARITY_BITS", file}};
  if (!variable.empty()) variables[variable] = "1";
  Process ranks({FSDP_RUN, "-n", std::to_string(world), self, "--no-skip",
                 "--test-case=one rank of the process parity test"},
                variables);
  const ProcessResult result = ranks.wait(std::chrono::seconds(300));
  CAPTURE(result.out);
  CAPTURE(result.err);
  CHECK(result.code == 0);
  CHECK(result.out.find("1 passed | 0 failed") != std::string::npos);
  std::ifstream bits(file);
  return {std::istreambuf_iterator<char>(bits), {}};
}

}  // namespace

TEST_CASE(
    "twenty steps of the demo's model have the plain model's bits, on threads and processes") {
  const std::vector<int> worlds =
      is_long_run() ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{2, 3};
  for (const int world : worlds) {
    CAPTURE(world);
    const std::string plain =
        bits_of(train_plain({.shard = world}, PARITY_MODEL, ParityOptimizer::kSgd));
    CHECK(bits_of(train_on_threads(world, ParityOptimizer::kSgd)) == plain);
    if (world != 3 || is_long_run()) CHECK(train_on_processes(world) == plain);
    if (world == 2) CHECK(train_on_processes(world, "PARITY_GATHERS") == plain);
  }
}

TEST_CASE("two groups of two processes have the bits of the mean over groups") {
  const std::string plain =
      bits_of(train_plain({.replicate = 2, .shard = 2}, PARITY_MODEL, ParityOptimizer::kSgd));
  CHECK(train_on_processes(4, "PARITY_GROUPS") == plain);
}

// LibTorch's AdamW rounds its square root differently. Only the optimizer differs from the test
// with SGD, so two worlds are enough.
TEST_CASE("twenty steps of the demo's model with AdamW have the plain model's losses") {
  for (const int world : {1, 3}) {
    if (world == 1 && !is_long_run()) continue;
    CAPTURE(world);
    const TrainedBert sharded = train_on_threads(world, ParityOptimizer::kAdamW);
    const TrainedBert plain = train_plain({.shard = world}, PARITY_MODEL, ParityOptimizer::kAdamW);
    REQUIRE(sharded.losses.size() == plain.losses.size());
    for (size_t step = 0; step < plain.losses.size(); ++step) {
      CAPTURE(step);
      CHECK(std::abs(sharded.losses[step] / plain.losses[step] - 1) <= 1e-6);
    }
  }
}
