// Checkpoints in folders that are full, too small, locked or not shared: the texts of the errors.
#include "fsdp/checkpoints.h"

#include <sys/mman.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/save_failure.h"
#include "checkpoint/save_state.h"
#include "checkpoint/support/exact_training.h"
#include "fsdp/error.h"
#include "io/found_checkpoints.h"
#include "io/support/failing_disk.h"
#include "support/file_size_limit.h"
#include "support/long_run.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Returns the text of the error that `call` throws, with its code in front.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::to_string(error.exit_code()) + " " + error.what();
  }
  return "accepted";
}

// Calls `use` on each rank with the state of a small model. Returns the texts of the notes and
// warnings.
std::vector<std::string> with_state(
    int world, const std::function<void(const Mesh& mesh, TrainingState& state)>& use) {
  std::mutex mutex;
  std::vector<std::string> said;
  testing::RunRanksOptions ranks = testing::torch_ranks_options();
  ranks.mesh.on_event = [&](const MeshEvent& event) {
    const std::lock_guard lock(mutex);
    said.push_back(Error(ExitCode::kOk, event.text).what());
  };
  testing::run_ranks(
      world,
      [&](const Mesh& mesh) {
        Unit<testing::ExactPart> model(3, 5);
        Engine engine(model, mesh);
        TrainingState state(engine);
        use(mesh, state);
      },
      ranks);
  return said;
}

TEST_CASE("a save to a full disk names step, file and reason, and says what is whole") {
  const ScratchFolder folder;
  bool has_byte = false;
  with_state(1, [&](const Mesh&, TrainingState& state) {
    save(state, folder_of_step(folder.path(), 1), {.step = 1});
    for (int64_t at = 0;; ++at) {
      CAPTURE(at);
      FailingDisk disk(at, ENOSPC);
      const Outcome outcome = save_state(
          parts_of(state), {.folder = folder_of_step(folder.path(), 2)}, {.step = 2}, disk);
      if (!outcome.failed()) break;
      const ErrorText text =
          save_failure_text(outcome, {.step = 2, .whole_step = 1, .missing_bytes = 3 << 20});
      CHECK(text.what.starts_with("the checkpoint of step 2 was not saved: cannot "));
      CHECK(says(text.where, folder.path().string()));
      CHECK(text.cause == "No space left on device");
      CHECK(text.hint == "free 3.0 MiB; the checkpoint of step 1 is whole");
      has_byte |= says(text.where, "/shard-00000-of-00001.safetensors, byte 0");
    }
  });
  CHECK(has_byte);
}

TEST_CASE("a save that fails ends the run, or is a warning with the same text") {
  constexpr std::string_view kText =
      "the checkpoint of step 2 was not saved: cannot reserve 9232 bytes for the file (";
  constexpr std::string_view kHint =
      "File too large; hint: raise the file size limit (ulimit -f); no existing file was changed; "
      "the checkpoint of step 1 is whole";
  for (const OnSaveError on_error : {OnSaveError::kStop, OnSaveError::kContinue}) {
    const ScratchFolder folder;
    std::string error;
    const std::vector<std::string> said = with_state(1, [&](const Mesh&, TrainingState& state) {
      Checkpoints checkpoints(
          state, {.folder = folder.path(), .save_steps = 1, .on_save_error = on_error});
      CHECK(checkpoints.resume() == 0);
      CHECK_FALSE(checkpoints.after_step(1));
      {
        const FileSizeLimit limit(4096);
        error = error_of([&] { CHECK_FALSE(checkpoints.after_step(2)); });
      }
      CHECK(folder.names() == std::vector<std::string>{".fsdp.lock", "step-00000001"});
      CHECK_FALSE(checkpoints.after_step(3));
    });
    CHECK(folder.names() == std::vector<std::string>{"step-00000001", "step-00000003"});
    const bool stops = on_error == OnSaveError::kStop;
    CHECK(said.size() == (stops ? 1 : 2));  // the first note has the size of a checkpoint
    const std::string text = stops ? error : "74 " + said.back();
    CAPTURE(text);
    CHECK(text.starts_with("74 " + std::string(kText)));
    CHECK(text.ends_with(kHint));
    CHECK(error == (stops ? text : "accepted"));
  }
}

// Not under sanitizers, because they use most of the address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a run whose checkpoints do not fit is refused before its first step, and so is a save") {
  constexpr int64_t kBytes = int64_t{1} << 45;
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const ScratchFolder folder;
  with_state(1, [&](const Mesh&, TrainingState& state) {
    at::Tensor huge = at::from_blob(memory, {kBytes}, at::kByte);
    state.add("huge", huge);
    {
      Checkpoints checkpoints(state,
                              {.folder = folder.path(), .save_steps = 1, .save_total_limit = 2});
      const std::string error = error_of([&] { checkpoints.resume(); });
      CAPTURE(error);
      CHECK(error.starts_with("74 3 checkpoints of 32.0 TiB do not fit on the disk: "));
      CHECK(says(error, " are free (" + folder.path().string() + "); hint: free some space, "));
    }
    Checkpoints checkpoints(state, {.folder = folder.path()});
    CHECK(checkpoints.resume() == 0);
    std::raise(SIGUSR1);
    const std::string error = error_of([&] { checkpoints.after_step(1); });
    CAPTURE(error);
    CHECK(error.starts_with(
        "74 the checkpoint of step 1 was not saved: a rank's part of the checkpoint "
        "needs "));
    CHECK(error.ends_with("; there is no earlier checkpoint of this run"));
  });
  CHECK(folder.names().empty());
  ::munmap(memory, kBytes);
}
#endif

TEST_CASE("a folder that is locked, not writable or no folder is refused with 73") {
  const ScratchFolder folder;
  folder.write("file", "");
  with_state(1, [&](const Mesh&, TrainingState& state) {
    const auto refused = [&](const std::filesystem::path& path) {
      return error_of([&] { Checkpoints(state, {.folder = path}); });
    };
    const Checkpoints holder(state, {.folder = folder / "made" / "twice"});
    CHECK(refused(folder / "made/twice").starts_with("73 another run writes into the folder ("));
    const std::string blocked = refused(folder / "file/checkpoints");
    CHECK(blocked.starts_with("73 the folder of the checkpoints cannot be created ("));
    CHECK(blocked.ends_with("Not a directory; hint: choose a writable --save-dir"));
    CHECK(says(refused(folder / "file"), "); Not a directory; hint: "));
    CHECK(says(refused(folder / std::string(300, 'n')), "); File name too long; hint: "));
    const std::string locked = refused("/proc");  // not writable, also for root
    CHECK(locked.starts_with("73 the folder's lock file cannot be created (/proc/.fsdp.lock); "));
    CHECK(locked.ends_with("hint: choose a writable folder"));
    Checkpoints missing(state, {.folder = folder / "other", .resume = folder / "none"});
    CHECK(error_of([&] { missing.resume(); }).starts_with("74 "));
  });
}

TEST_CASE("a rank that does not see the folder of rank 0 ends the job before its first step") {
  const ScratchFolder folder;
  std::string host;
  const auto run = [&](bool is_shared) {
    return testing::errors_of_ranks(
        3,
        [&](const Mesh& mesh) {
          Unit<testing::ExactPart> model(3, 5);
          Engine engine(model, mesh);
          TrainingState state(engine);
          if (mesh.rank() == 0) host = mesh.host();
          Checkpoints(state, {.folder = folder / (is_shared || mesh.rank() < 2 ? "a" : "b")});
        },
        testing::torch_ranks_options());
  };
  const std::vector<std::string> errors = run(false);
  CHECK(errors[2] == "rank 2 (host " + host + ") does not see what rank 0 (host " + host +
                         ") wrote (" + (folder / "b").string() +
                         "); hint: use a --save-dir that all hosts share");
  CHECK(errors[0] == RefusedElsewhere(ExitCode::kConfiguration).what());
  CHECK(run(true) == std::vector<std::string>(3));
  CHECK_FALSE(std::filesystem::exists(folder / "a"));  // nothing was saved
}

// A disk whose syncs wait until a rank warns.
class SlowDisk : public Disk {
 public:
  explicit SlowDisk(const std::function<void()>& wait) : wait_(wait) {}
  int fsync(int) override {
    wait_();
    return 0;
  }

 private:
  const std::function<void()>& wait_;
};

TEST_CASE("a rank that writes slowly is named after five seconds") {
  if (!testing::is_long_run()) return;
  const ScratchFolder folder;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> said;
  testing::RunRanksOptions ranks = testing::torch_ranks_options();
  ranks.mesh.on_event = [&](const MeshEvent& event) {
    const std::lock_guard lock(mutex);
    said.push_back(event.text.what);
    changed.notify_all();
  };
  const std::function<void()> wait = [&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !said.empty(); });
  };
  testing::run_ranks(
      2,
      [&](const Mesh& mesh) {
        Unit<testing::ExactPart> model(3, 5);
        Engine engine(model, mesh);
        TrainingState state(engine);
        SlowDisk slow(wait);
        Disk& disk = mesh.rank() == 1 ? slow : Disk::system();
        CHECK_FALSE(
            save_state(parts_of(state), {.folder = folder / "saved"}, {.step = 1}, disk).failed());
      },
      ranks);
  CHECK(said == std::vector<std::string>{"rank 1 is still writing the checkpoint after 5 s"});
}

}  // namespace
}  // namespace fsdp
