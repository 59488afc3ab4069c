#include "checkpoint/load_chosen.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "checkpoint/load_state.h"
#include "checkpoint/memory_copies.h"
#include "checkpoint/publication.h"
#include "checkpoint/save_failure.h"
#include "fsdp/error.h"
#include "io/found_checkpoints.h"

namespace fsdp {
namespace {

struct Candidates {
  std::vector<FoundCheckpoint> checkpoints;  // newest first
  int64_t sequence = 0;                      // the largest of the run's checkpoints
  int64_t newest_step = 0;
  int64_t passed_over = 0;
};

// Adds the copies of the same run in the launcher's memory. Copies with values that are not finite
// and copies of other runs are not used. Warns about damaged copies, and removes them.
void add_copies(const Mesh& mesh, Candidates& found) {
  const auto memory = launcher_memory();
  if (!memory) return;
  for (const std::filesystem::path& folder : copy_folders(*memory)) {
    FoundCheckpoints copies = find_checkpoints(folder);
    for (FoundCheckpoint& copy : copies.of_run) {
      found.sequence = std::max(found.sequence, copy.sequence);
      const bool is_of_run = found.checkpoints.empty() || copy.run == found.checkpoints.front().run;
      if (copy.finite && is_of_run) found.checkpoints.push_back(std::move(copy));
    }
    for (const auto& [path, error] : copies.damaged) {
      mesh.warn({.what = "a damaged copy in memory is passed over",
                 .where = path.string(),
                 .cause = error.what()});
      remove_folder(Disk::system(), path);
    }
  }
  std::ranges::stable_sort(found.checkpoints, std::ranges::greater{}, &FoundCheckpoint::sequence);
}

bool is_in_memory(const std::filesystem::path& checkpoint) {
  const auto memory = launcher_memory();
  return memory && checkpoint.parent_path().parent_path() == *memory;
}

// Finds the checkpoints of the newest run that `auto` may load, newest first. Warns about the
// others. Called on rank 0.
Candidates find_candidates(const Mesh& mesh, const CheckpointOptions& options) {
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
      found.newest_step = std::max(found.newest_step, each.step);
      found.checkpoints.push_back(std::move(each));
      continue;
    }
    pass_over({.what = "a checkpoint with values that are not finite is passed over",
               .where = each.folder.string(),
               .hint = "load it with --resume FOLDER if you want its values"});
  }
  for (const FoundCheckpoint& other : all.of_other_runs) {
    if (found.checkpoints.empty() || other.step <= found.newest_step) continue;
    mesh.note(fmt::format("{} has a later step, but it belongs to an earlier run",
                          other.folder.string()));
  }
  add_copies(mesh, found);
  return found;
}

// Passes a note to the program on rank 0 that names the checkpoint that was loaded.
void tell(const Mesh& mesh, const CheckpointOptions& options, const LoadedState& loaded,
          const std::filesystem::path& path) {
  if (mesh.rank() != 0) return;
  mesh.note(fmt::format(
      "{} from step {} ({}{})", options.resume_weights_only ? "the weights were loaded" : "resumed",
      loaded.report.step, is_in_memory(path) ? "copy in memory, " : "", path.string()));
  for (const std::string& note : loaded.report.notes) mesh.note(note);
}

// Loads the newest candidate that is not damaged, and returns its step. Only rank 0 searches the
// folder, because other hosts may see new names late.
std::optional<int64_t> load_newest(TrainingState::Parts& state, const CheckpointOptions& options) {
  const Mesh& mesh = state.mesh();
  Candidates found;
  run_or_throw_on_all_ranks(mesh, kOpening, [&] {
    if (mesh.rank() == 0) found = find_candidates(mesh, options);
  });
  int64_t passed_over = found.passed_over;
  for (size_t i = 0;; ++i) {
    const std::string mine =
        i < found.checkpoints.size() ? found.checkpoints[i].folder.string() : "";
    const std::string chosen = mesh.exchange("newest checkpoint", mine).front();
    if (chosen.empty()) break;
    const LoadedState loaded =
        load_state(state, chosen, {.weights_only = options.resume_weights_only});
    if (!loaded.outcome.failed()) {
      // The next checkpoint gets a higher sequence number than every checkpoint of the run,
      // including those that were passed over.
      state.lineage.sequence =
          mesh.max(std::max(state.lineage.sequence, found.sequence), "number of the checkpoint");
      tell(mesh, options, loaded, chosen);
      return loaded.report.step;
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
    // Otherwise a later restart would try a damaged copy again.
    if (mesh.rank() == 0 && is_in_memory(chosen)) remove_folder(Disk::system(), chosen);
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
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> load_chosen(TrainingState::Parts& state, const CheckpointOptions& options) {
  if (options.resume == "none") return std::nullopt;
  if (options.resume == "auto") return load_newest(state, options);
  const LoadedState loaded =
      load_state(state, options.resume, {.weights_only = options.resume_weights_only});
  throw_on_all_ranks(state.mesh(), loaded.outcome);
  tell(state.mesh(), options, loaded, options.resume);
  return loaded.report.step;
}

}  // namespace fsdp
