#include "fsdp/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_size.h"
#include "checkpoint/load_state.h"
#include "checkpoint/resume_command.h"
#include "checkpoint/save_failure.h"
#include "checkpoint/save_state.h"
#include "checkpoint/stop_signals.h"
#include "comm/job/job_progress.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/file_failure.h"
#include "io/found_checkpoints.h"

namespace fsdp {
namespace {

constexpr std::string_view kOpening = "opening the folder of the checkpoints";
// Sets the default of --resume: "auto" if the launcher has restarted this job, otherwise "none".
CheckpointOptions resolved(CheckpointOptions options) {
  if (!options.resume.empty()) return options;
  const bool is_restarted = read_launch_environment().restart_count > 0;
  options.resume = is_restarted && !options.folder.empty() ? "auto" : "none";
  return options;
}

// Returns the text of the error of this rank. Requires: `outcome.mine` is set.
std::string text_of(const Outcome& outcome) {
  try {
    std::rethrow_exception(outcome.mine);
  } catch (const std::exception& error) {
    return error.what();
  }
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
    if (folder) {
      for (const std::string& note : folder->notes()) mesh.note(note);
    }
  }

  int64_t resume();
  bool after_step(int64_t step, bool is_step);

  int64_t last_step = 0;

 private:
  struct Candidates {
    std::vector<std::filesystem::path> folders;  // newest first
    int64_t sequence = 0;                        // the largest of the run's checkpoints
    int64_t newest_step = 0;
    int64_t passed_over = 0;
  };
  Candidates find_candidates() const;
  int64_t load_newest();
  int64_t load_named(const std::filesystem::path& path);
  int64_t resumed(const LoadedState& loaded, const std::filesystem::path& path);
  LoadStateOptions load_options() const { return {.weights_only = options.resume_weights_only}; }
  void require_shared_folder() const;
  void require_space();
  int64_t missing_bytes() const;
  void save(int64_t step);
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
  if (options.resume != "none") {
    last_step = options.resume == "auto" ? load_newest() : load_named(options.resume);
  }
  if (options.save_steps > 0) require_space();
  return last_step;
}

// Passes a note to the program on rank 0 that names the checkpoint that was loaded. Returns the
// step from which the training continues.
int64_t Checkpoints::State::resumed(const LoadedState& loaded, const std::filesystem::path& path) {
  if (mesh.rank() == 0) {
    mesh.note(fmt::format("{} from step {} ({})",
                          options.resume_weights_only ? "the weights were loaded" : "resumed",
                          loaded.report.step, path.string()));
    for (const std::string& note : loaded.report.notes) mesh.note(note);
  }
  if (options.resume_weights_only) return 0;
  whole_step = loaded.report.step;
  return whole_step;
}

int64_t Checkpoints::State::load_named(const std::filesystem::path& path) {
  const LoadedState loaded = load_state(state, path, load_options());
  throw_on_all_ranks(mesh, loaded.outcome);
  return resumed(loaded, path);
}

// Finds the checkpoints of the newest run that `auto` may load, newest first. Warns about the
// others. Called on rank 0.
Checkpoints::State::Candidates Checkpoints::State::find_candidates() const {
  Candidates found;
  FoundCheckpoints all = find_checkpoints(options.folder);
  const auto pass_over = [&](ErrorText text) {
    ++found.passed_over;
    mesh.warn(text);
  };
  for (const auto& [path, error] : all.damaged) {
    pass_over({.what = "a damaged checkpoint is passed over",
               .where = path.string(),
               .cause = error.what()});
  }
  for (FoundCheckpoint& each : all.of_run) {
    found.sequence = std::max(found.sequence, each.sequence);
    if (each.finite) {
      found.folders.push_back(each.folder);
      found.newest_step = std::max(found.newest_step, each.step);
      continue;
    }
    pass_over({.what = "a checkpoint with values that are not finite is passed over",
               .where = each.folder.string(),
               .hint = "load it with --resume FOLDER if you want its values"});
  }
  for (const FoundCheckpoint& other : all.of_other_runs) {
    if (found.folders.empty() || other.step <= found.newest_step) continue;
    mesh.note(fmt::format("{} has a later step, but it belongs to an earlier run",
                          other.folder.string()));
  }
  return found;
}

// Loads the newest candidate that is not damaged, and returns its step. Only rank 0 searches the
// folder, because other hosts may see new names late.
int64_t Checkpoints::State::load_newest() {
  Candidates found;
  run_or_throw_on_all_ranks(mesh, kOpening, [&] {
    if (mesh.rank() == 0) found = find_candidates();
  });
  int64_t passed_over = found.passed_over;
  for (size_t i = 0;; ++i) {
    const std::string mine = i < found.folders.size() ? found.folders[i].string() : "";
    const std::string chosen = mesh.exchange("newest checkpoint", mine).front();
    if (chosen.empty()) break;
    const LoadedState loaded = load_state(state, chosen, load_options());
    if (!loaded.outcome.failed()) {
      // The next checkpoint gets a higher sequence number than every checkpoint of the run,
      // including those that were passed over.
      state.lineage.sequence =
          mesh.max(std::max(state.lineage.sequence, found.sequence), "number of the checkpoint");
      return resumed(loaded, chosen);
    }
    if (loaded.changed || loaded.outcome.code != ExitCode::kCorruptData) {
      throw_on_all_ranks(mesh, loaded.outcome);
    }
    ++passed_over;
    if (loaded.outcome.mine) {
      mesh.warn({.what = "a checkpoint that cannot be loaded is passed over",
                 .where = chosen,
                 .cause = text_of(loaded.outcome)});
    }
  }
  run_or_throw_on_all_ranks(mesh, kOpening, [&] {
    if (mesh.rank() != 0 || passed_over == 0) return;
    throw IoError(
        ExitCode::kCorruptData,
        {.what = fmt::format("none of {} checkpoints can be loaded", passed_over),
         .where = options.folder.string(),
         .hint = "see the warnings; start anew with --resume none and another --save-dir"});
  });
  if (mesh.rank() == 0) {
    mesh.note(
        fmt::format("the training begins anew: {} has no checkpoint", options.folder.string()));
  }
  return 0;
}

// Throws before the first step if the checkpoints of this run cannot fit on the disk. If they fit,
// passes a note to the program that gives their sizes.
void Checkpoints::State::require_space() {
  for (const auto& each : state.objects) each->prepare();
  const CheckpointSize size = checkpoint_size(
      state.parts_to_save({.weights_only = options.save_only_model}), mesh.world_size());
  most_bytes = size.most_bytes;
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
  if (mesh.rank() == 0) mesh.note(options.describe(size));
}

// Returns the bytes that the disk lacks for one more checkpoint; 0 if that is not known.
int64_t Checkpoints::State::missing_bytes() const {
  const std::optional<int64_t> available = available_bytes(options.folder);
  return available ? std::max<int64_t>(most_bytes - *available, 0) : 0;
}

void Checkpoints::State::save(int64_t step) {
  const std::filesystem::path path = folder_of_step(options.folder, step);
  bool exists = false;
  if (mesh.rank() == 0) {
    std::error_code ignored;
    exists = std::filesystem::exists(path, ignored);
  }
  Outcome outcome =
      save_state(state, {.folder = path, .replaces = exists},
                 {.step = step, .weights_only = options.save_only_model}, Disk::system());
  if (outcome.failed()) {
    const bool is_of_disk =
        outcome.code == ExitCode::kIoError || outcome.code == ExitCode::kCannotCreate;
    if (!is_of_disk) throw_on_all_ranks(mesh, outcome);
    ErrorText text;
    if (outcome.mine) {
      text = save_failure_text(
          outcome, {.step = step, .whole_step = whole_step, .missing_bytes = missing_bytes()});
      outcome.mine = std::make_exception_ptr(IoError(outcome.code, text));
    }
    if (options.on_save_error == OnSaveError::kStop) throw_on_all_ranks(mesh, outcome);
    if (outcome.mine) mesh.warn(text);
    return;
  }
  saved_step = whole_step = step;
  if (progress) ++progress->saved();
  if (!folder || options.save_total_limit == 0) return;
  for (const std::string& error : folder->prune(state.lineage.run, options.save_total_limit)) {
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
  using Request = StopSignals::Request;
  const auto request = static_cast<Request>(
      mesh.max(static_cast<int64_t>(signals->request()), "requests of signals"));
  const bool is_due = is_step && options.save_steps > 0 && step % options.save_steps == 0;
  if (request != Request::kNone) signals->forget_save();
  // poll() does not save the step that this process saved last. after_step() does, because the
  // program may have loaded an earlier checkpoint and repeated the step.
  const bool is_saved = !is_step && saved_step == step;
  if ((is_due || request != Request::kNone) && !is_saved) save(step);
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
bool Checkpoints::poll() { return state_->after_step(state_->last_step, /*is_step=*/false); }

}  // namespace fsdp
