// Saves that a thread of each rank writes while the training continues.
#include "checkpoint/background_save.h"

#include <fsdp/checkpoints.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/save_state.h"
#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "io/checked_shard.h"
#include "io/found_checkpoints.h"
#include "io/support/failing_disk.h"
#include "io/support/recorded_disk.h"
#include "support/file_size_limit.h"
#include "support/long_run.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::ExactNet;

// A disk whose writes wait until they are allowed.
class ClosedDisk final : public FailingDisk {
 public:
  void let_through() {
    is_open_ = true;
    is_open_.notify_all();
  }
  ssize_t pwrite(int fd, const void* bytes, size_t size, int64_t offset) override {
    is_open_.wait(false);
    return FailingDisk::pwrite(fd, bytes, size, offset);
  }

 private:
  std::atomic<bool> is_open_ = false;
};

struct Training {
  const Mesh& mesh;
  Unit<ExactNet>& model;
  Engine& engine;
  Optimizer& optimizer;
  TrainingState& state;

  void step(int64_t number) const { testing::take_exact_step(engine, model, optimizer, number); }
};

// Calls `use` on each of `world` ranks. Returns the texts of warnings.
template <class Use>
std::vector<std::string> with_saving_training(int world, const Use& use,
                                              const Options& options = {}) {
  std::mutex mutex;
  std::vector<std::string> warned;
  testing::RunRanksOptions ranks = testing::torch_ranks_options();
  ranks.mesh.on_event = [&](const MeshEvent& event) {
    if (event.kind != MeshEvent::Kind::kWarning) return;
    const std::lock_guard lock(mutex);
    warned.push_back(Error(ExitCode::kOk, event.text).what());
  };
  testing::run_ranks(
      world,
      [&](const Mesh& mesh) {
        Unit<ExactNet> model(17);
        Engine engine(model, mesh, options);
        const std::unique_ptr<Optimizer> optimizer = testing::make_optimizer(engine, "adamw");
        TrainingState state(engine);
        state.add("optimizer", *optimizer);
        use(Training{mesh, model, engine, *optimizer, state});
      },
      ranks);
  return warned;
}

BackgroundSave::Place place_of(TrainingState& state, const std::filesystem::path& folder) {
  return {.target = {.folder = folder}, .temporary = next_temporary(parts_of(state), folder)};
}

// Returns the bytes of each tensor of a checkpoint's shards, by file and name.
std::map<std::string, std::string> tensors_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> tensors;
  const CheckpointManifest manifest = read_manifest(folder);
  for (size_t i = 0; i + 1 < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    CheckedShard(folder / file.name, file.bytes, file.sum).check_all();
    const SafetensorsFile shard(folder / file.name);
    for (const StoredTensor& tensor : shard.tensors()) {
      const auto bytes = shard.bytes(tensor);
      tensors[file.name + "/" + tensor.name] = {reinterpret_cast<const char*>(bytes.data()),
                                                bytes.size()};
    }
  }
  return tensors;
}

TEST_CASE("a save beside the training has the bytes of a save that all ranks wait for") {
  for (const int world : {1, 2, 3}) {
    std::vector<Options> kinds(3);
    kinds[1].strategy = Strategy::kReplicate;
    kinds[2].strategy = Strategy::kZero2;
    kinds[2].cpu_offload = true;
    for (const Options& options : kinds) {
      CAPTURE(world);
      const ScratchFolder folder;
      ClosedDisk disk;
      with_saving_training(
          world,
          [&](const Training& training) {
            StagedShard staged(parts_of(training.state).engine);
            BackgroundSave saves(parts_of(training.state), disk, {});
            training.step(1);
            save(training.state, folder / "waited", {.step = 1});
            saves.start(staged, place_of(training.state, folder / "beside"), {.step = 1});
            for (int64_t step = 2; step < 5; ++step) training.step(step);
            if (training.mesh.rank() == 0) {
              CHECK_FALSE(std::filesystem::exists(folder / "beside"));
              CHECK_FALSE(saves.has_news());
              disk.let_through();
            }
            const Outcome outcome = saves.finish(/*some_rank_has_news=*/false);
            CHECK_FALSE(outcome.failed());
            CHECK(load(training.state, folder / "beside").step == 1);
          },
          options);
      CHECK(tensors_of(folder / "beside") == tensors_of(folder / "waited"));
      CHECK(read_manifest(folder / "beside").finite);
      CHECK(folder.names() == std::vector<std::string>{"beside", "waited"});
    }
  }
}

TEST_CASE("rank 0 publishes without a collective") {
  const ScratchFolder folder;
  with_saving_training(2, [&](const Training& training) {
    StagedShard staged(parts_of(training.state).engine);
    BackgroundSave saves(parts_of(training.state), Disk::system(), {});
    saves.start(staged, place_of(training.state, folder / "saved"), {.step = 1});
    while (!std::filesystem::exists(folder / "saved")) std::this_thread::yield();
    if (training.mesh.rank() == 0) {
      while (!saves.has_news()) std::this_thread::yield();
    }
    CHECK_FALSE(saves.finish(/*some_rank_has_news=*/true).failed());
  });
}

// All other weights are copied while the next forward and backward run.
TEST_CASE("weights are copied at once only if other code may write them") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHybridShard,
                                  Strategy::kReplicate, Strategy::kZero1, Strategy::kZero2}) {
    for (const at::ScalarType dtype : {torch::kFloat32, torch::kBFloat16}) {
      CAPTURE(name_of(strategy));
      CAPTURE(dtype);
      const bool is_sharded =
          strategy == Strategy::kFullShard || strategy == Strategy::kHybridShard;
      with_saving_training(
          2,
          [&](const Training& training) {
            const auto at_once = [&] {
              int count = 0;
              for (const StatePart& part : parts_for_save(parts_of(training.state), {})) {
                const bool is_weight = part.name.starts_with("model/weight/");
                CHECK((is_weight || !part.has_other_writers));
                count += is_weight && part.has_other_writers ? 1 : 0;
              }
              return count;
            };
            const bool in_parameters = dtype == torch::kFloat32 && !is_sharded;
            CHECK((at_once() > 0) == in_parameters);
            const std::vector<at::Tensor> views = training.engine.parameters();
            CHECK(at_once() == std::ssize(views));
          },
          {.mixed_precision = {.param_dtype = dtype}, .strategy = strategy});
    }
  }
}

TEST_CASE("writes through views after a save do not reach the checkpoint") {
  const ScratchFolder folder;
  ClosedDisk disk;
  with_saving_training(2, [&](const Training& training) {
    torch::optim::AdamW other(training.engine.parameters(), torch::optim::AdamWOptions(0.1));
    TrainingState state(training.engine);
    state.add("optimizer", training.optimizer).add("other", other);
    const auto zero = [&] {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& each : training.engine.parameters()) each.data().zero_();
    };
    StagedShard staged(parts_of(state).engine);
    BackgroundSave saves(parts_of(state), disk, {});
    save(state, folder / "waited", {.step = 1});
    saves.start(staged, place_of(training.state, folder / "beside"), {.step = 1});
    zero();
    disk.let_through();
    CHECK_FALSE(saves.finish(false).failed());
    // Views that are made during a save are returned after the copy.
    saves.start(staged, place_of(training.state, folder / "zeros"), {.step = 2});
    CHECK_FALSE(saves.finish(false).failed());
  });
  CHECK(tensors_of(folder / "beside") == tensors_of(folder / "waited"));
  CHECK(tensors_of(folder / "zeros") != tensors_of(folder / "waited"));
}

TEST_CASE("values that are not finite are found on any rank") {
  const ScratchFolder folder;
  const auto warned = with_saving_training(3, [&](const Training& training) {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& each : training.engine.parameters()) {
      if (training.mesh.rank() == 2 && each.numel() > 0) {
        each.data()[0] = std::numeric_limits<float>::infinity();
        break;
      }
    }
    StagedShard staged(parts_of(training.state).engine);
    BackgroundSave saves(parts_of(training.state), Disk::system(), {});
    saves.start(staged, place_of(training.state, folder / "saved"), {.step = 1});
    CHECK_FALSE(saves.finish(false).failed());
  });
  CHECK_FALSE(read_manifest(folder / "saved").finite);
  REQUIRE(warned.size() == 1);
  CHECK(warned.front().starts_with("the checkpoint of step 1 has values that are not finite"));
}

int entries(const char* folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST_CASE("a call that fails is reported on all ranks, and the old checkpoint stays") {
  for (const int error : {ENOSPC, EIO, EINTR, FailingDisk::kShortWrite}) {
    for (int64_t at = 0;; ++at) {
      CAPTURE(error);
      CAPTURE(at);
      const ScratchFolder folder;
      std::atomic<int> failed = 0;
      int64_t calls = 0;
      with_saving_training(2, [&](const Training& training) {
        save(training.state, folder_of_step(folder.path(), 1), {.step = 1});
        // Only rank 1's disk fails, or only rank 0's.
        FailingDisk failing(at, error), sound;
        const bool is_victim = training.mesh.rank() == at % 2;
        StagedShard staged(parts_of(training.state).engine);
        BackgroundSave saves(parts_of(training.state), is_victim ? failing : sound, {});
        saves.start(staged, place_of(training.state, folder_of_step(folder.path(), 2)),
                    {.step = 2});
        const Outcome outcome = saves.finish(false);
        failed += outcome.failed() ? 1 : 0;
        CHECK((outcome.mine != nullptr) == (outcome.failed() && is_victim));
        if (is_victim) calls = failing.calls();
        // The next save works.
        saves.start(staged, place_of(training.state, folder_of_step(folder.path(), 3)),
                    {.step = 3});
        const Outcome next = saves.finish(false);
        CHECK_FALSE(next.failed());
      });
      CHECK((failed == 0 || failed == 2));
      if (error == FailingDisk::kShortWrite) CHECK(failed == 0);
      std::vector<std::string> names{"step-00000001", "step-00000002", "step-00000003"};
      if (failed > 0) names.erase(names.begin() + 1);
      CHECK(folder.names() == names);
      for (const std::string& name : names) CHECK_FALSE(tensors_of(folder / name).empty());
      if (at + 1 >= calls) break;
    }
  }
}

TEST_CASE("after_step reports a failure on all ranks") {
  for (const OnSaveError on_error : {OnSaveError::kStop, OnSaveError::kContinue}) {
    const bool stops = on_error == OnSaveError::kStop;
    const ScratchFolder folder;
    std::atomic<int> stopped = 0;
    std::optional<FileSizeLimit> limit;
    std::vector<std::string> warned;
    try {
      warned = with_saving_training(2, [&](const Training& training) {
        Checkpoints checkpoints(training.state, {.folder = folder.path(),
                                                 .save_steps = 2,
                                                 .save_async = true,
                                                 .on_save_error = on_error});
        checkpoints.resume();
        for (int64_t step = 1; step <= 11; ++step) {
          training.step(step);
          if (step == 3) checkpoints.finish();
          if (step == 3) CHECK(checkpoints.completed_save()->bytes > 0);
          training.mesh.max(0, "the limit changes");
          if (step == 4 && training.mesh.rank() == 0) limit.emplace(4096);
          training.mesh.max(0, "the limit has changed");
          try {
            REQUIRE_FALSE(checkpoints.after_step(step));
          } catch (const Error&) {
            CHECK(step <= 6);  // the save of step 6 waits for the one of step 4
            ++stopped;
            throw;
          }
        }
        checkpoints.finish();
        CHECK_FALSE(checkpoints.completed_save());
      });
    } catch (const Error& error) {
      CHECK(stops);
      INFO(error.what());
      CHECK(std::string(error.what()).starts_with("the checkpoint of step 4 was not saved: "));
    }
    limit.reset();
    CHECK(stopped == (stops ? 2 : 0));
    CHECK(warned.size() == (stops ? 0 : 4));
    CHECK(folder.names() == std::vector<std::string>{"step-00000002"});
  }
}

TEST_CASE("the end of the scope waits for a save, and an exception abandons it") {
  for (const bool throws : {false, true}) {
    const ScratchFolder folder;
    try {
      with_saving_training(2, [&](const Training& training) {
        Checkpoints checkpoints(training.state,
                                {.folder = folder.path(), .save_steps = 1, .save_async = true});
        checkpoints.resume();
        checkpoints.after_step(1);
        if (throws) throw std::runtime_error("thrown");
      });
    } catch (const std::exception&) {
      CHECK(throws);
    }
    if (!throws) CHECK(folder.names() == std::vector<std::string>{"step-00000001"});
    CHECK(find_checkpoints(folder.path()).damaged.empty());
  }
}

TEST_CASE("many saves leave no threads, descriptors or folders behind") {
  const ScratchFolder folder;
  const int saves = testing::is_long_run() ? 1000 : 50;
  with_saving_training(2, [&](const Training& training) {
    Checkpoints checkpoints(
        training.state,
        {.folder = folder.path(), .save_steps = 1, .save_total_limit = 2, .save_async = true});
    checkpoints.resume();
    int threads = 0, descriptors = 0;
    for (int64_t step = 1; step <= saves; ++step) {
      training.step(step);
      checkpoints.after_step(step);
      if (step % 10 != 0) continue;
      checkpoints.finish();
      training.mesh.max(0, "counting");
      // Counting opens a descriptor, so only one rank counts.
      if (training.mesh.rank() == 0) {
        if (step == 10) threads = entries("/proc/self/task");
        if (step == 10) descriptors = entries("/proc/self/fd");
        CHECK(entries("/proc/self/task") <= threads);
        CHECK(entries("/proc/self/fd") <= descriptors);
      }
      training.mesh.max(0, "counted");
    }
    CHECK(training.engine.stats().memory.in_use == training.engine.memory_plan().rest);
  });
  CHECK(folder.names().size() == 2);
}

TEST_CASE("a disk that is slow delays the end of a save, not the steps") {
  const ScratchFolder folder;
  ClosedDisk disk;
  const auto warned = with_saving_training(2, [&](const Training& training) {
    StagedShard staged(parts_of(training.state).engine);
    BackgroundSave saves(parts_of(training.state),
                         training.mesh.rank() == 1 ? static_cast<Disk&>(disk) : Disk::system(), {});
    saves.start(staged, place_of(training.state, folder / "saved"), {.step = 1});
    for (int64_t step = 2; step < 50; ++step) training.step(step);
    CHECK_FALSE(std::filesystem::exists(folder / "saved"));
    std::thread opens;
    if (training.mesh.rank() == 1) {
      opens = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5300));
        disk.let_through();
      });
    }
    CHECK_FALSE(saves.finish(false).failed());
    if (opens.joinable()) opens.join();
  });
  REQUIRE(warned.size() == 1);
  CHECK(warned.front().starts_with("rank 1 is still writing the checkpoint after 5 s"));
}

}  // namespace
}  // namespace fsdp
