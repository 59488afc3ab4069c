// Saves checkpoints on disks that fail, fill up, or lose power, and loads damaged checkpoints.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/background_save.h"
#include "checkpoint/load_state.h"
#include "checkpoint/save_state.h"
#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "io/checked_shard.h"
#include "io/found_checkpoints.h"
#include "io/support/failing_disk.h"
#include "io/support/recorded_disk.h"
#include "support/long_run.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::run_torch_ranks;

struct FewImpl : torch::nn::Module {
  FewImpl() {
    weight = register_parameter("weight", at::arange(40, at::kFloat));
    bias = register_parameter("bias", at::ones({3}));
  }
  at::Tensor forward() { return (weight * weight).sum() + bias.sum(); }
  at::Tensor weight, bias;
};
TORCH_MODULE(Few);

// Calls `use` on each of `world` ranks with a training of a few elements.
template <class Use>
void with_training(int world, const Use& use) {
  run_torch_ranks(world, [&](const Mesh& mesh) {
    Unit<Few> model;
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.5, .momentum = 0.9});
    TrainingState state(engine);
    state.add("optimizer", optimizer);
    use(mesh, state, [&] {
      model().backward();
      optimizer.step();
      optimizer.zero_grad();
    });
  });
}

// Returns an error if a folder with the name of a checkpoint is not whole.
std::string fault_of(const std::filesystem::path& folder) {
  const FoundCheckpoints found = find_checkpoints(folder);
  if (!found.damaged.empty()) return found.damaged.front().second.what();
  try {
    for (const FoundCheckpoint& each : found.of_run) {
      const CheckpointManifest manifest = read_manifest(each.folder);
      for (size_t i = 0; i + 1 < manifest.files.size(); ++i) {
        const ManifestFile& file = manifest.files[i];
        CheckedShard(each.folder / file.name, file.bytes, file.sum).check_all();
      }
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool has_step(const std::filesystem::path& folder, int64_t step) {
  return std::filesystem::exists(folder_of_step(folder, step) / kManifestName);
}

// Saves the checkpoints of steps 1 and 2 on two ranks, by threads beside the training if
// `in_background`. Returns the number of calls after each save.
std::vector<size_t> save_twice(const ScratchFolder& folder, RecordedDisk& disk,
                               bool in_background) {
  std::vector<size_t> ends;
  with_training(2, [&](const Mesh& mesh, TrainingState& state, const auto& step) {
    StagedShard staged(parts_of(state).engine);
    BackgroundSave saves(parts_of(state), disk, {});
    for (const int64_t at : {1, 2}) {
      step();
      const std::filesystem::path to = folder_of_step(folder.path(), at);
      if (in_background) {
        saves.start(staged,
                    {.target = {.folder = to}, .temporary = next_temporary(parts_of(state), to)},
                    {.step = at});
        REQUIRE_FALSE(saves.finish(/*some_rank_has_news=*/false).failed());
      } else {
        REQUIRE_FALSE(save_state(parts_of(state), {.folder = to}, {.step = at}, disk).failed());
      }
      if (mesh.rank() == 0) ends.push_back(disk.calls().size());
    }
  });
  return ends;
}

// Returns the first fault that a loss of power can cause; empty if there is none.
std::string first_fault(const RecordedDisk& disk, const std::vector<size_t>& ends) {
  struct Found {
    std::string fault;
  };
  try {
    for_each_loss(disk, [&](const std::filesystem::path& left, const PowerLoss& loss) {
      std::string fault = fault_of(left);
      // The checkpoint of a save that has returned must exist.
      for (size_t save = 0; save < ends.size() && fault.empty(); ++save) {
        const auto step = static_cast<int64_t>(save) + 1;
        if (loss.calls >= ends[save] && !has_step(left, step)) fault = "a checkpoint is lost";
      }
      if (!fault.empty()) throw Found{fault};
    });
  } catch (const Found& found) {
    return found.fault;
  }
  return {};
}

// Returns the indices of the calls that sync a file or a folder.
std::vector<size_t> syncs_of(const RecordedDisk& disk) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < disk.calls().size(); ++i) {
    if (disk.calls()[i].kind == RecordedCall::Kind::kSync) indices.push_back(i);
  }
  return indices;
}

TEST_CASE("after a loss of power at any call every checkpoint is whole, and each fsync is needed") {
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    const ScratchFolder folder;
    RecordedDisk disk(folder.path());
    const std::vector<size_t> ends = save_twice(folder, disk, in_background);
    CHECK(first_fault(disk, ends) == "");
    // Random subsets of the calls that may be lost.
    std::mt19937 random(3);
    const int subsets = testing::is_long_run() ? 1000 : 200;
    for (int i = 0; i < subsets; ++i) {
      PowerLoss loss{.calls = random() % (disk.calls().size() + 1)};
      for (const size_t call : disk.unsynced(loss.calls)) {
        if (random() % 2 == 0) loss.kept_bytes[call] = 0;
      }
      const ScratchFolder left;
      disk.replay(left.path(), loss);
      CHECK(fault_of(left.path()).empty());
    }
    if (!testing::is_long_run()) continue;
    const size_t syncs = syncs_of(disk).size();
    for (size_t sync = 0; sync < syncs; ++sync) {
      const ScratchFolder other;
      RecordedDisk without(other.path());
      std::vector<size_t> other_ends = save_twice(other, without, in_background);
      const size_t at = syncs_of(without).at(sync);
      CAPTURE(without.calls()[at].path.string());
      without.forget_call(at);
      for (size_t& end : other_ends) end -= end > at ? 1 : 0;
      CHECK(first_fault(without, other_ends) != "");
    }
  }
}

int descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST_CASE("a call of a save that fails leaves the old checkpoint whole and nothing else") {
  for (const int error : {ENOSPC, EIO, EINTR, FailingDisk::kShortWrite}) {
    for (int64_t at = 0;; ++at) {
      CAPTURE(error);
      CAPTURE(at);
      const ScratchFolder folder;
      bool failed = false;
      int64_t calls = 0;
      with_training(1, [&](const Mesh&, TrainingState& state, const auto& step) {
        step();
        save(state, folder_of_step(folder.path(), 1), {.step = 1});
        const int before = descriptors();
        FailingDisk disk(at, error);
        const Outcome outcome = save_state(
            parts_of(state), {.folder = folder_of_step(folder.path(), 2)}, {.step = 2}, disk);
        CHECK(descriptors() == before);
        failed = outcome.failed();
        calls = disk.calls();
        if (failed && error != EINTR) CHECK(outcome.code == ExitCode::kIoError);
        if (failed) return;
        CHECK(load(state, folder_of_step(folder.path(), 2)).step == 2);
      });
      CHECK(fault_of(folder.path()).empty());
      CHECK(has_step(folder.path(), 1));
      CHECK(has_step(folder.path(), 2) != failed);
      const std::vector<std::string> names = folder.names();
      CHECK(names.size() == (failed ? 1 : 2));
      if (error == FailingDisk::kShortWrite) CHECK_FALSE(failed);
      if (at >= calls) break;
    }
  }
}

TEST_CASE("a changed byte anywhere is refused by name, and nothing changes") {
  const ScratchFolder folder;
  with_training(1, [&](const Mesh&, TrainingState& state, const auto& step) {
    step();
    save(state, folder / "saved", {.step = 1});
    step();
    save(state, folder / "later", {.step = 2});
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "saved")) {
      names.push_back(entry.path().filename());
    }
    for (const std::string& name : names) {
      const std::filesystem::path path = folder / "saved" / name;
      const std::string whole = read_whole(path);
      for (size_t at = 0; at < whole.size(); at += testing::is_long_run() ? 1 : 61) {
        CAPTURE(name);
        CAPTURE(at);
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
        std::ofstream(path, std::ios::binary) << damaged;
        const LoadedState loaded = load_state(parts_of(state), folder / "saved", {});
        CHECK(loaded.outcome.code == ExitCode::kCorruptData);
        CHECK_FALSE(loaded.changed);
      }
      std::ofstream(path, std::ios::binary) << whole;
    }
    CHECK(load(state, folder / "saved").step == 1);
  });
}

}  // namespace
}  // namespace fsdp
