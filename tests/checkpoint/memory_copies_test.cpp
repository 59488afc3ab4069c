// Copies of the state in the launcher's memory.
#include "checkpoint/memory_copies.h"

#include <fsdp/checkpoints.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save_state.h"
#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "io/found_checkpoints.h"
#include "support/file_size_limit.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

// The launcher's memory: a folder on disk, which behaves like one in memory.
class LauncherMemory {
 public:
  LauncherMemory() { ::setenv("FSDP_MEMORY_DIR", folder_.path().c_str(), 1); }
  ~LauncherMemory() { ::unsetenv("FSDP_MEMORY_DIR"); }
  std::vector<FoundCheckpoint> copies() const {
    std::vector<FoundCheckpoint> copies;
    for (const auto& folder : copy_folders(folder_.path())) {
      for (FoundCheckpoint& each : find_checkpoints(folder).of_run) copies.push_back(each);
    }
    return copies;
  }
  int64_t newest_step() const {
    int64_t newest = 0;
    for (const FoundCheckpoint& each : copies()) newest = std::max(newest, each.step);
    return newest;
  }

 private:
  ScratchFolder folder_;
};

struct Run {
  int world = 2;
  int64_t steps = 0;
  CheckpointOptions options;
  bool is_finite = true;
  const LauncherMemory* memory = nullptr;  // if set: a kill at any time costs no more steps
};

// Trains on threads until `steps` steps are done. Returns the notes and warnings, with the step
// from which the training began in front.
std::vector<std::string> train(const Run& run) {
  std::mutex mutex;
  std::vector<std::string> said;
  int64_t began = 0;
  testing::RunRanksOptions ranks = testing::torch_ranks_options();
  ranks.mesh.on_event = [&](const MeshEvent& event) {
    const std::lock_guard lock(mutex);
    said.push_back(Error(ExitCode::kOk, event.text).what());
  };
  testing::run_ranks(
      run.world,
      [&](const Mesh& mesh) {
        Unit<testing::ExactNet> model(17);
        Engine engine(model, mesh);
        const auto optimizer = testing::make_optimizer(engine, "adamw");
        TrainingState state(engine);
        state.add("optimizer", *optimizer);
        Checkpoints checkpoints(state, run.options);
        int64_t step = checkpoints.resume();
        if (mesh.rank() == 0) began = step;
        while (step < run.steps) {
          testing::take_exact_step(engine, model, *optimizer, ++step);
          if (!run.is_finite) {
            const torch::NoGradGuard no_grad;
            for (const at::Tensor& each : engine.parameters()) each.data().fill_(INFINITY);
          }
          if (run.memory != nullptr && mesh.rank() == 0) {
            CHECK(step - run.memory->newest_step() <= run.options.save_memory_steps);
          }
          checkpoints.after_step(step);
        }
        checkpoints.finish();
        if (run.options.save_memory_steps > 0) {
          CHECK(engine.stats().memory.in_use == engine.memory_plan().rest);
        }
      },
      ranks);
  said.insert(said.begin(), std::to_string(began));
  return said;
}

bool says(const std::vector<std::string>& said, std::string_view part) {
  for (const std::string& each : said) {
    if (each.find(part) != std::string::npos) return true;
  }
  return false;
}

// Changes the last byte of each file of a checkpoint whose name begins with `part`.
void damage(const std::filesystem::path& folder, const std::string& part) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(part)) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(byte);
  }
}

// Returns options of a run that copies its state after every second step.
CheckpointOptions in_memory(const ScratchFolder& folder, int64_t save_steps = 0) {
  return {
      .folder = folder.path(), .save_steps = save_steps, .resume = "auto", .save_memory_steps = 3};
}

TEST_CASE("a restarted training resumes from the newer copy, on any number of ranks") {
  const LauncherMemory memory;
  const ScratchFolder folder;
  CHECK(says(train({.world = 2, .steps = 7, .options = in_memory(folder)}), "begins anew"));
  REQUIRE(memory.copies().size() == 2);
  int64_t steps = 7;
  for (const int world : {3, 1, 2}) {
    CAPTURE(world);
    steps += 3;
    const auto said = train({.world = world, .steps = steps, .options = in_memory(folder)});
    CHECK(said.front() == std::to_string((steps - 3) / 2 * 2));
    CHECK(says(said, "(copy in memory, "));
    CHECK(memory.copies().size() == 2);
  }
  CHECK(folder.names().empty());
}

TEST_CASE(
    "a copy in memory gives way to a newer checkpoint, and to an older one if it is damaged") {
  const LauncherMemory memory;
  const ScratchFolder folder;
  train({.steps = 5, .options = in_memory(folder, 5)});
  const auto from_disk = train({.steps = 9, .options = in_memory(folder, 5)});
  CHECK(from_disk.front() == "5");
  CHECK_FALSE(says(from_disk, "copy in memory"));
  const std::vector<FoundCheckpoint> copies = memory.copies();
  REQUIRE(copies.size() == 2);
  damage(copies[0].folder, "shard-00001");
  damage(copies[1].folder, "manifest");
  const auto after_damage = train({.steps = 10, .options = in_memory(folder, 5)});
  CHECK(after_damage.front() == "5");
  CHECK(says(after_damage, "a checkpoint that cannot be loaded is passed over"));
  CHECK(says(after_damage, "a damaged copy in memory is passed over"));
  const auto last = train({.steps = 10, .options = in_memory(folder, 5)});
  CHECK(last.front() == "10");
  CHECK_FALSE(says(last, "passed over"));
}

TEST_CASE("before the end of each step, a copy exists that is at most save_memory_steps older") {
  for (const int steps : {1, 2, 3, 5}) {
    CAPTURE(steps);
    const LauncherMemory memory;
    const ScratchFolder folder;
    CheckpointOptions options = in_memory(folder);
    options.save_memory_steps = steps;
    train({.steps = 12, .options = options, .memory = &memory});
    CHECK(memory.newest_step() == 12 / options.memory_copy_steps() * options.memory_copy_steps());
  }
}

TEST_CASE("a copy of another run is not used") {
  const LauncherMemory memory;
  const ScratchFolder folder, other;
  train({.steps = 3, .options = {.folder = other.path(), .save_steps = 1}});
  train({.steps = 9, .options = in_memory(folder)});
  const auto said = train({.steps = 4, .options = in_memory(other)});
  CHECK(said.front() == "3");
  CHECK_FALSE(says(said, "copy in memory"));
}

TEST_CASE("a copy that is not finite does not replace the last finite one") {
  const LauncherMemory memory;
  const ScratchFolder folder;
  train({.steps = 4, .options = in_memory(folder)});
  train({.steps = 12, .options = in_memory(folder), .is_finite = false});
  const auto said = train({.steps = 5, .options = in_memory(folder)});
  CHECK(said.front() == "4");
}

TEST_CASE("memory that is full, or that no launcher keeps, ends the run at its start") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH_AS(
      train({.steps = 1, .options = in_memory(folder)}),
      "--save-memory-steps needs a launcher that keeps the copies; FSDP_MEMORY_DIR "
      "is not set; hint: start the job on one host with fsdp-run --max-restarts N",
      InvalidArgument);
  const LauncherMemory memory;
  {
    const FileSizeLimit limit(4096);
    CHECK_THROWS_AS(train({.steps = 2, .options = in_memory(folder)}), IoError);
  }
  CHECK(train({.steps = 2, .options = in_memory(folder)}).front() == "0");
  CHECK(train({.steps = 2, .options = in_memory(folder)}).front() == "2");
}

}  // namespace
}  // namespace fsdp
