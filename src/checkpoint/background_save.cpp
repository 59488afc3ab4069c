#include "checkpoint/background_save.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "checkpoint/save_state.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "io/block_sums.h"
#include "io/shard_writer.h"

namespace fsdp {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The time between two looks of rank 0's thread for the files of other ranks.
constexpr auto kLookEvery = std::chrono::milliseconds(10);

}  // namespace

// The saves whose threads run. exit() destroys objects that the threads use, so a function that is
// called by exit() ends the threads before.
class RunningSaves {
 public:
  static void add(BackgroundSave* save) {
    const std::lock_guard lock(mutex());
    static const int registered = std::atexit(end_all);
    static_cast<void>(registered);
    all().insert(save);
  }
  static void remove(BackgroundSave* save) {
    const std::lock_guard lock(mutex());
    all().erase(save);
  }

 private:
  static void end_all() {
    const std::lock_guard lock(mutex());
    for (BackgroundSave* save : all()) save->abandon_at_exit();
  }
  // Both are never destroyed, because threads may use them during exit().
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::set<BackgroundSave*>& all() {
    static auto& all = *new std::set<BackgroundSave*>;
    return all;
  }
};

struct BackgroundSave::Run {
  StagedShard& staged;
  SaveTarget target;
  std::filesystem::path temporary;
  CheckpointManifest manifest;  // on rank 0
  int64_t step = 0;
  SteadyClock::time_point began = SteadyClock::now();
  // The results of this rank's thread. `written` gets its value when the rank's file is on disk, or
  // its exception. `ended` gets its value at the end of the thread.
  std::promise<void> write, end;
  std::shared_future<void> written = write.get_future().share();
  std::shared_future<void> ended = end.get_future().share();
  std::atomic<bool> has_failed = false;
  bool is_published = false;  // of rank 0, after `ended`
  bool is_finite = true;      // the same
  double seconds = 0;         // after `ended`
  std::jthread thread;        // declared last, so it is joined first
};

BackgroundSave::BackgroundSave(TrainingState::Parts& state, Disk& disk,
                               std::function<void()> on_published)
    : state_(state),
      disk_(disk),
      on_published_(std::move(on_published)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  RunningSaves::add(this);
}

BackgroundSave::~BackgroundSave() {
  if (run_ && std::uncaught_exceptions() == exceptions_at_start_) {
    try {
      run_->ended.get();
      if (state_.mesh().rank() == 0 && !run_->is_published) {
        throw StateError({.what = "another rank has not written its part"});
      }
    } catch (const std::exception& error) {
      state_.mesh().warn(
          {.what = fmt::format("the checkpoint of step {} was not saved", run_->step),
           .where = run_->target.folder.string(),
           .cause = error.what()});
    }
  }
  abandon();
  RunningSaves::remove(this);
}

void BackgroundSave::abandon_at_exit() noexcept {
  if (!run_ || run_->ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return;
  abandon();
  if (state_.mesh().rank() != 0) return;
  state_.mesh().warn({.what = fmt::format("the checkpoint of step {} was not saved", run_->step),
                      .where = run_->target.folder.string(),
                      .cause = "the program called exit() while the checkpoint was written",
                      .hint = "return from main, or call Checkpoints::finish() before exit()"});
}

void BackgroundSave::abandon() noexcept {
  if (!run_) return;
  run_->thread.request_stop();
  if (run_->thread.joinable()) run_->thread.join();
}

void BackgroundSave::start(StagedShard& staged, const Place& place,
                           const SaveStateOptions& options) {
  const std::vector<StatePart> parts = parts_for_save(state_, options);
  auto run = std::unique_ptr<Run>(new Run{.staged = staged,
                                          .target = place.target,
                                          .temporary = place.temporary,
                                          .step = options.step});
  if (state_.mesh().rank() == 0) run->manifest = begin_manifest(state_, parts, options);
  ++state_.lineage.sequence;
  staged.stage(ShardContent(parts));
  run_ = std::move(run);
  run_->thread = std::jthread([this](const std::stop_token& stop) {
    write(stop);
    publish_when_written(stop);
    run_->seconds = std::chrono::duration<double>(SteadyClock::now() - run_->began).count();
  });
  pthread_setname_np(run_->thread.native_handle(), "checkpoint");
}

// Writes this rank's file, on the rank's thread.
void BackgroundSave::write(const std::stop_token& stop) {
  Run& run = *run_;
  const Mesh& mesh = state_.mesh();
  try {
    run.staged.wait_for_copies();
    run.staged.check_values();
    if (mesh.rank() == 0) require_free_name(run.target);
    const std::filesystem::path file = run.temporary / shard_name(mesh.rank(), mesh.world_size());
    if (run.staged.is_file()) {
      write_sums(disk_, file, run.staged.file());
    } else {
      make_temporary(disk_, run.temporary);
      require_space(run.temporary, std::ssize(run.staged.file()));
      write_shard_image(disk_, file, run.staged.file(), stop);
    }
    run.write.set_value();
  } catch (...) {
    run.has_failed = true;
    run.write.set_exception(std::current_exception());
  }
}

// Publishes the checkpoint, on rank 0's thread. The thread of another rank only ends.
void BackgroundSave::publish_when_written(const std::stop_token& stop) {
  Run& run = *run_;
  try {
    run.written.get();
    if (state_.mesh().rank() == 0 && wait_for_shards(stop)) {
      run.is_finite =
          publish(disk_, std::move(run.manifest), run.temporary, run.target, state_.mesh().host());
      run.is_published = true;
      if (on_published_) on_published_();
    }
    run.end.set_value();
  } catch (...) {
    run.has_failed = true;
    run.end.set_exception(std::current_exception());
  }
}

// Waits until every rank has written its file, whose hashes are written last. Returns false if a
// stop is requested, or if a rank has ended without these hashes.
bool BackgroundSave::wait_for_shards(const std::stop_token& stop) const {
  const Mesh& mesh = state_.mesh();
  const ControlPlane& plane = *state_of(mesh).parts().control_plane;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const std::filesystem::path sums =
        sums_path(run_->temporary / shard_name(rank, mesh.world_size()));
    std::error_code ignored;
    while (!std::filesystem::exists(sums, ignored)) {
      if (stop.stop_requested() || plane.first_failure()) return false;
      // The rank may have written the hashes just before it ended, so they are looked for again.
      if (plane.end_of(plane.job_rank(rank)) && !std::filesystem::exists(sums, ignored))
        return false;
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  return !stop.stop_requested();
}

bool BackgroundSave::has_news() const {
  if (!run_) return false;
  if (run_->has_failed) return true;
  return state_.mesh().rank() == 0 &&
         run_->ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Outcome BackgroundSave::finish(bool some_rank_has_news) {
  const Mesh& mesh = state_.mesh();
  const bool is_written =
      run_->written.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (some_rank_has_news && !is_written) run_->thread.request_stop();
  Outcome outcome = run_on_all_ranks(mesh, kWritingCheckpoint, [&] { run_->written.get(); });
  if (outcome.failed()) {
    run_->thread.request_stop();
  } else {
    bool has_nonfinite = false;
    const auto end = [&] {
      run_->ended.get();
      has_nonfinite = !run_->is_finite;
    };
    outcome = run_on_all_ranks(mesh, kWritingCheckpoint, end, &has_nonfinite);
  }
  run_->thread.join();
  seconds_ = run_->seconds;
  if (!outcome.failed()) {
    warn_if_not_finite(mesh, run_->target, run_->step, !outcome.flagged);
  } else if (mesh.rank() == 0 && !run_->staged.is_file()) {
    remove_folder(disk_, run_->temporary);
  }
  run_.reset();
  return outcome;
}

}  // namespace fsdp
