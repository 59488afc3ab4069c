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
#include "checkpoint/load_state.h"
#include "checkpoint/save_state.h"
#include "checkpoint/stop_signals.h"
#include "comm/job/job_progress.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/found_checkpoints.h"

namespace fsdp {
namespace {

constexpr std::string_view kOpening = "opening the folder of the checkpoints";
constexpr int64_t kLeastKept = 2;

void require_options(const CheckpointOptions& options) {
  const auto refuse = [](std::string what, std::string hint) {
    throw InvalidArgument({.what = std::move(what), .hint = std::move(hint)}, ExitCode::kUsage);
  };
  if (options.save_steps < 0) {
    refuse(fmt::format("--save-steps is {}", options.save_steps), "use 0 or more steps");
  }
  if (options.save_total_limit != 0 && options.save_total_limit < kLeastKept) {
    refuse(fmt::format("--save-total-limit is {}", options.save_total_limit),
           "keep at least 2 checkpoints, because the newest one may be damaged; 0 keeps all");
  }
  if (!options.folder.empty()) return;
  if (options.save_steps > 0) refuse("--save-steps has no folder", "add --save-dir FOLDER");
  if (options.resume == "auto") refuse("--resume auto has no folder", "add --save-dir FOLDER");
}

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
      : state(parts_of(training)), options(resolved(std::move(given))), mesh(state.mesh()) {
    run_or_throw_on_all_ranks(mesh, kOpening, [&] { require_options(options); });
    if (mesh.rank() == 0) progress = JobProgress::inherited();
    if (options.folder.empty()) return;
    run_or_throw_on_all_ranks(mesh, kOpening, [&] {
      if (mesh.rank() == 0) folder.emplace(options.folder, Disk::system());
    });
    if (folder) {
      for (const std::string& note : folder->notes()) mesh.note(note);
    }
    signals.emplace();
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
  void report(const LoadedState& loaded, const std::filesystem::path& path) const;
  LoadStateOptions load_options() const { return {.weights_only = options.resume_weights_only}; }
  void require_space();
  void save(int64_t step);

  TrainingState::Parts& state;
  const CheckpointOptions options;
  const Mesh& mesh;
  std::optional<CheckpointFolder> folder;  // on rank 0
  std::optional<StopSignals> signals;
  std::optional<JobProgress> progress;  // on rank 0, if the launcher can restart the job
  int64_t saved_step = -1;  // step of the last checkpoint that this process saved; -1: none
};

int64_t Checkpoints::State::resume() {
  if (options.resume != "none") {
    last_step = options.resume == "auto" ? load_newest() : load_named(options.resume);
  }
  if (options.save_steps > 0) require_space();
  return last_step;
}

// Passes a note to the program on rank 0 that names the checkpoint that was loaded.
void Checkpoints::State::report(const LoadedState& loaded,
                                const std::filesystem::path& path) const {
  if (mesh.rank() != 0) return;
  mesh.note(fmt::format("{} from step {} ({})",
                        options.resume_weights_only ? "the weights were loaded" : "resumed",
                        loaded.report.step, path.string()));
  for (const std::string& note : loaded.report.notes) mesh.note(note);
}

int64_t Checkpoints::State::load_named(const std::filesystem::path& path) {
  const LoadedState loaded = load_state(state, path, load_options());
  throw_on_all_ranks(mesh, loaded.outcome);
  report(loaded, path);
  return options.resume_weights_only ? 0 : loaded.report.step;
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
      report(loaded, chosen);
      return options.resume_weights_only ? 0 : loaded.report.step;
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

// Throws before the first step if the checkpoints of this run cannot fit on the disk.
void Checkpoints::State::require_space() {
  for (const auto& each : state.objects) each->prepare();
  const int64_t bytes =
      checkpoint_bytes(state.parts_to_save({.weights_only = options.save_only_model}));
  run_or_throw_on_all_ranks(mesh, kOpening, [&] {
    if (mesh.rank() != 0) return;
    std::error_code error;
    const auto space = std::filesystem::space(options.folder, error);
    if (error) return;
    // While a checkpoint is written, the earlier ones that the run keeps still exist. So the disk
    // needs room for one more than it keeps.
    const int64_t count = options.save_total_limit > 0 ? options.save_total_limit + 1 : kLeastKept;
    const FoundCheckpoints found = find_checkpoints(options.folder);
    const int64_t existing =
        std::ranges::count(found.of_run, state.lineage.run, &FoundCheckpoint::run);
    const int64_t needed = std::max<int64_t>(count - existing, 1) * bytes;
    const auto available = static_cast<int64_t>(space.available);
    if (available >= needed) return;
    throw IoError(ExitCode::kIoError,
                  {.what = fmt::format("{} checkpoints of {} do not fit on the disk: {} are free",
                                       count, spell_bytes(bytes), spell_bytes(available)),
                   .where = options.folder.string(),
                   .hint = "free some space, choose another --save-dir, or lower "
                           "--save-total-limit"});
  });
}

void Checkpoints::State::save(int64_t step) {
  const std::filesystem::path path = folder_of_step(options.folder, step);
  bool exists = false;
  if (mesh.rank() == 0) {
    std::error_code ignored;
    exists = std::filesystem::exists(path, ignored);
  }
  const Outcome outcome =
      save_state(state, {.folder = path, .replaces = exists},
                 {.step = step, .weights_only = options.save_only_model}, Disk::system());
  const bool is_of_disk =
      outcome.code == ExitCode::kIoError || outcome.code == ExitCode::kCannotCreate;
  if (outcome.failed() && (options.on_save_error == OnSaveError::kStop || !is_of_disk)) {
    throw_on_all_ranks(mesh, outcome);
  }
  if (outcome.failed()) {
    if (!outcome.mine) return;
    mesh.warn({.what = fmt::format("the checkpoint of step {} was not saved", step),
               .cause = text_of(outcome)});
    return;
  }
  saved_step = step;
  if (progress) ++progress->saved();
  if (!folder || options.save_total_limit == 0) return;
  for (const std::string& error : folder->prune(state.lineage.run, options.save_total_limit)) {
    mesh.warn({.what = "an old checkpoint is kept", .cause = error});
  }
}

bool Checkpoints::State::after_step(int64_t step, bool is_step) {
  last_step = step;
  if (progress && is_step) progress->step() = step;
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
