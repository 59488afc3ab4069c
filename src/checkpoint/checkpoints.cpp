#include "fsdp/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "checkpoint/background_save.h"
#include "checkpoint/checkpoint_size.h"
#include "checkpoint/load_chosen.h"
#include "checkpoint/memory_copies.h"
#include "checkpoint/resume_command.h"
#include "checkpoint/save_failure.h"
#include "checkpoint/save_state.h"
#include "checkpoint/stop_signals.h"
#include "comm/job/job_progress.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/checkpoint_folder.h"
#include "io/file_failure.h"
#include "io/found_checkpoints.h"

namespace fsdp {
namespace {

// Sets the default of --resume: "auto" if the launcher has restarted this job, otherwise "none".
CheckpointOptions resolved(CheckpointOptions options) {
  if (!options.resume.empty()) return options;
  const bool is_restarted = read_launch_environment().restart_count > 0;
  options.resume = is_restarted && !options.folder.empty() ? "auto" : "none";
  return options;
}

// A request of a rank at the end of a step. The ranks act on the highest one. Each of the last two
// includes the one before, because they wait for a save that is in progress.
enum class Request : uint8_t { kNone, kSaveHasNews, kSave, kStop };

Request request_of(const StopSignals& signals) {
  switch (signals.request()) {
    case StopSignals::Request::kNone:
      return Request::kNone;
    case StopSignals::Request::kSave:
      return Request::kSave;
    case StopSignals::Request::kStop:
      return Request::kStop;
  }
  return Request::kNone;
}

double ms_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
      .count();
}

}  // namespace

struct Checkpoints::State {
  State(TrainingState& training, CheckpointOptions given)
      : state(parts_of(training)),
        options(resolved(std::move(given))),
        mesh(state.mesh()),
        progress(mesh.rank() == 0 ? JobProgress::inherited() : std::nullopt) {
    run_or_throw_on_all_ranks(mesh, kOpening, [&] { options.require_valid(); });
    if (options.folder.empty()) {
      if (mesh.rank() == 0) lost_steps.emplace();
      return;
    }
    run_or_throw_on_all_ranks(mesh, kOpening, [&] {
      if (mesh.rank() == 0) folder.emplace(options.folder, Disk::system());
    });
    signals.emplace();
    require_shared_folder();
    if (options.save_async) {
      staged.emplace(state.engine);
      background.emplace(state, Disk::system(), [this] { follow_save(); });
    }
    if (options.save_memory_steps > 0) {
      copies.emplace(state, [this] {
        if (progress) ++progress->saved();
      });
    }
    if (folder) {
      for (const std::string& note : folder->notes()) mesh.note(note);
    }
  }

  int64_t resume();
  bool after_step(int64_t step, bool is_step);

  void finish() {
    if (background && background->is_in_progress()) finish_background(/*has_news=*/false);
    if (copies && copies->is_in_progress()) finish_copy();
  }

  int64_t last_step = 0;
  std::optional<SaveStats> completed;

 private:
  void require_shared_folder() const;
  void prepare_saves();
  void require_space() const;
  int64_t missing_bytes() const;
  SaveTarget target_of(int64_t step) const;
  void save(int64_t step);
  void start_background(int64_t step);
  void finish_background(bool has_news);
  void copy_to_memory(int64_t step);
  void finish_copy();
  void report_copy(const Outcome& outcome) const;
  void end_save(SaveStats stats, Outcome outcome);
  void follow_save();
  int64_t held_ns() const;
  void note_stop(int64_t step) const;

  TrainingState::Parts& state;
  const CheckpointOptions options;
  const Mesh& mesh;
  std::optional<CheckpointFolder> folder;  // on rank 0
  std::optional<StopSignals> signals;
  std::optional<LostSteps> lost_steps;  // on rank 0, without a folder
  std::optional<JobProgress> progress;  // on rank 0, if the launcher can restart the job
  int64_t saved_step = -1;  // step of the last checkpoint that this process saved; -1: none
  int64_t whole_step = -1;  // step of the last checkpoint that was saved or loaded; -1: none
  int64_t most_bytes = 0;   // upper bound of a checkpoint's size; 0: not known
  std::vector<std::string> prune_errors;  // of the last save, on rank 0
  std::optional<StagedShard> staged;      // with save_async, as the next member
  std::optional<BackgroundSave> background;
  std::optional<MemoryCopies> copies;  // with save_memory_steps
  SaveStats started;                   // figures of the save in progress
  int64_t held_before = 0;             // held_ns() at its start
};

// Throws on all ranks if a rank does not see a folder that rank 0 makes. The folder has a temporary
// name, so the next job removes it if this job dies.
void Checkpoints::State::require_shared_folder() const {
  if (mesh.world_size() == 1) return;
  const std::filesystem::path probe =
      options.folder /
      fmt::format("{}{}", temporary_prefix(folder_of_step(options.folder, 0)), state.nonce);
  run_or_throw_on_all_ranks(mesh, kOpening, [&] {
    if (mesh.rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directory(probe, error);
    if (error) cannot_create(probe, error.value(), "cannot write into the checkpoints' folder");
  });
  const std::string writer = mesh.exchange("host of rank 0", mesh.host()).front();
  const Outcome outcome = run_on_all_ranks(mesh, kOpening, [&] {
    std::error_code ignored;
    if (std::filesystem::exists(probe, ignored)) return;
    throw InvalidArgument(
        {.what = fmt::format("rank {} (host {}) does not see what rank 0 (host {}) wrote",
                             mesh.job_rank(), mesh.host(), writer),
         .where = options.folder.string(),
         .hint = "use a --save-dir that all hosts share"});
  });
  if (mesh.rank() == 0) remove_folder(Disk::system(), probe);
  throw_on_all_ranks(mesh, outcome);
}

int64_t Checkpoints::State::resume() {
  const std::optional<int64_t> loaded = load_chosen(state, options);
  if (loaded && !options.resume_weights_only) last_step = whole_step = *loaded;
  if (options.save_steps > 0 || options.state_copies() > 0) prepare_saves();
  return last_step;
}

// Allocates the memory for copies of the state, and passes a note to the program that gives the
// size of a checkpoint.
void Checkpoints::State::prepare_saves() {
  for (const auto& each : state.objects) each->prepare();
  const std::vector<StatePart> parts =
      state.parts_to_save({.weights_only = options.save_only_model});
  const CheckpointSize size = checkpoint_size(parts, mesh.world_size());
  most_bytes = size.most_bytes;
  if (options.save_steps > 0) require_space();
  if (staged) {
    run_or_throw_on_all_ranks(mesh, "allocating the memory of --save-async",
                              [&] { staged->reserve(ShardContent(parts)); });
  }
  if (copies) copies->reserve(parts);
  if (mesh.rank() == 0) mesh.note(options.describe(size));
}

// Throws before the first step if the checkpoints of this run cannot fit on the disk.
void Checkpoints::State::require_space() const {
  run_or_throw_on_all_ranks(mesh, kOpening, [&] {
    if (mesh.rank() != 0) return;
    const std::optional<int64_t> available = available_bytes(options.folder);
    if (!available) return;
    const FoundCheckpoints found = find_checkpoints(options.folder);
    const int64_t existing =
        std::ranges::count(found.of_run, state.lineage.run, &FoundCheckpoint::run);
    const int64_t count = options.most_at_once();
    if (*available >= std::max<int64_t>(count - existing, 1) * most_bytes) return;
    throw IoError(ExitCode::kIoError,
                  {.what = fmt::format("{} checkpoints of {} do not fit on the disk: {} are free",
                                       count, format_bytes(most_bytes), format_bytes(*available)),
                   .where = options.folder.string(),
                   .cause = existing > 0 ? fmt::format("{} of them exist already", existing) : "",
                   .hint = "free some space, choose another --save-dir, or lower "
                           "--save-total-limit"});
  });
}

// Returns the bytes that the disk lacks for one more checkpoint; 0 if that is not known.
int64_t Checkpoints::State::missing_bytes() const {
  const std::optional<int64_t> available = available_bytes(options.folder);
  return available ? std::max<int64_t>(most_bytes - *available, 0) : 0;
}

SaveTarget Checkpoints::State::target_of(int64_t step) const {
  SaveTarget target{.folder = folder_of_step(options.folder, step)};
  std::error_code ignored;
  if (mesh.rank() == 0) target.replaces = std::filesystem::exists(target.folder, ignored);
  return target;
}

void Checkpoints::State::save(int64_t step) {
  const auto began = std::chrono::steady_clock::now();
  Outcome outcome =
      save_state(state, target_of(step), {.step = step, .weights_only = options.save_only_model},
                 Disk::system());
  if (!outcome.failed() && folder) follow_save();
  const double ms = ms_since(began);
  end_save({.step = step, .stall_ms = ms, .seconds = ms / 1000}, std::move(outcome));
}

void Checkpoints::State::start_background(int64_t step) {
  const auto began = std::chrono::steady_clock::now();
  held_before = held_ns();
  const SaveTarget target = target_of(step);
  background->start(*staged, {target, next_temporary(state, target.folder)},
                    {.step = step, .weights_only = options.save_only_model});
  started = {.step = step, .stall_ms = ms_since(began)};
}

void Checkpoints::State::finish_background(bool has_news) {
  const auto began = std::chrono::steady_clock::now();
  Outcome outcome = background->finish(has_news);
  started.stall_ms += ms_since(began) + static_cast<double>(held_ns() - held_before) / 1e6;
  started.seconds = background->seconds();
  end_save(started, std::move(outcome));
}

void Checkpoints::State::copy_to_memory(int64_t step) {
  report_copy(copies->make({.step = step, .weights_only = options.save_only_model}));
}

void Checkpoints::State::finish_copy() { report_copy(copies->finish()); }

// Errors: those of after_step.
void Checkpoints::State::report_copy(const Outcome& outcome) const {
  if (!outcome.failed()) return;
  if (options.on_save_error == OnSaveError::kStop) throw_on_all_ranks(mesh, outcome);
  if (!outcome.mine) return;
  mesh.warn({.what = "the state was not copied to memory", .cause = text_of(outcome)});
}

// Returns the time for which writers of main state have waited for copies.
int64_t Checkpoints::State::held_ns() const {
  int64_t ns = 0;
  for (const auto& each : state.objects) {
    if (each->engine() != nullptr) ns += each->engine()->context->hold.waited_ns();
  }
  return ns;
}

// Does rank 0's work after a checkpoint was published. Called on any thread.
void Checkpoints::State::follow_save() {
  if (progress) ++progress->saved();
  prune_errors.clear();
  if (options.save_total_limit == 0) return;
  prune_errors = folder->prune(state.lineage.run, options.save_total_limit);
}

// Reports the outcome of a save. Errors: those of after_step.
void Checkpoints::State::end_save(SaveStats stats, Outcome outcome) {
  if (outcome.failed()) {
    const bool is_of_disk =
        outcome.code == ExitCode::kIoError || outcome.code == ExitCode::kCannotCreate;
    if (!is_of_disk) throw_on_all_ranks(mesh, outcome);
    ErrorText text;
    if (outcome.mine) {
      text = save_failure_text(
          outcome,
          {.step = stats.step, .whole_step = whole_step, .missing_bytes = missing_bytes()});
      outcome.mine = std::make_exception_ptr(IoError(outcome.code, text));
    }
    if (options.on_save_error == OnSaveError::kStop) throw_on_all_ranks(mesh, outcome);
    if (outcome.mine) mesh.warn(text);
    return;
  }
  saved_step = whole_step = stats.step;
  stats.bytes = state.saved_bytes;
  completed = stats;
  for (const std::string& error : std::exchange(prune_errors, {})) {
    mesh.warn({.what = "an old checkpoint could not be removed", .cause = error});
  }
}

// Passes a note to the program on rank 0 that says how the run continues.
void Checkpoints::State::note_stop(int64_t step) const {
  if (mesh.rank() != 0 || saved_step != step || options.save_only_model) return;
  const std::string command = resume_command();
  mesh.note(fmt::format("saved step {}; to continue, {}", step,
                        command.empty() ? "add --resume auto to the command" : "run: " + command));
}

bool Checkpoints::State::after_step(int64_t step, bool is_step) {
  last_step = step;
  if (progress && is_step) progress->step() = step;
  if (lost_steps) lost_steps->set(step - std::max<int64_t>(whole_step, 0));
  if (options.folder.empty()) return false;
  Request mine = request_of(*signals);
  const bool is_saving = background && background->is_in_progress();
  if (is_saving && background->has_news()) mine = std::max(mine, Request::kSaveHasNews);
  const auto request =
      static_cast<Request>(mesh.max(static_cast<int64_t>(mine), "requests of signals"));
  if (is_saving && request == Request::kSaveHasNews) finish_background(/*has_news=*/true);
  if (copies && is_step) {
    if (copies->is_in_progress()) finish_copy();
    if (request != Request::kStop && step % options.memory_copy_steps() == 0) {
      copy_to_memory(step);
      if (options.save_memory_steps == 1) finish_copy();
    }
  }
  const bool is_asked = request >= Request::kSave;
  const bool is_due = is_step && options.save_steps > 0 && step % options.save_steps == 0;
  if (is_asked) signals->forget_save();
  if (!is_due && !is_asked) return false;
  finish();
  // poll() does not save the step that this process saved last. after_step() does, because the
  // program may have loaded an earlier checkpoint and repeated the step.
  const bool is_saved = !is_step && saved_step == step;
  // Before the end of the training, a copy would not save time.
  const bool in_background = background && request != Request::kStop;
  if (!is_saved && in_background) start_background(step);
  if (!is_saved && !in_background) save(step);
  if (request == Request::kStop) note_stop(step);
  return request == Request::kStop;
}

Checkpoints::Checkpoints(TrainingState& state, CheckpointOptions options)
    : state_(std::make_unique<State>(state, std::move(options))) {}
Checkpoints::~Checkpoints() = default;

bool continues_run(const CheckpointOptions& options) {
  const std::string resume = resolved(options).resume;
  if (options.folder.empty() || options.resume_weights_only || resume == "none") return false;
  if (resume == "auto") {
    const FoundCheckpoints found = find_checkpoints(options.folder);
    return !found.of_run.empty() || !found.damaged.empty();
  }
  // "FOLDER/step-00001200/" names the same folder as "FOLDER/step-00001200".
  const std::filesystem::path named = std::filesystem::weakly_canonical(resume);
  std::error_code ignored;
  return std::filesystem::equivalent(named.parent_path(), options.folder, ignored);
}

int64_t Checkpoints::resume() { return state_->resume(); }
bool Checkpoints::after_step(int64_t step) { return state_->after_step(step, /*is_step=*/true); }
void Checkpoints::finish() { state_->finish(); }
std::optional<SaveStats> Checkpoints::completed_save() {
  return std::exchange(state_->completed, std::nullopt);
}
bool Checkpoints::poll() { return state_->after_step(state_->last_step, /*is_step=*/false); }

}  // namespace fsdp
