#include "programs/checkpoint_prune.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/checkpoint_folder.h"
#include "io/disk.h"
#include "io/found_checkpoints.h"
#include "io/name_list.h"
#include "programs/checkpoint_check.h"

namespace fsdp {
namespace {

std::string counted_checkpoints(int64_t count) {
  return fmt::format("{} checkpoint{}", count, count == 1 ? "" : "s");
}

// If a kept checkpoint were damaged, the removal could leave none that a job can load.
void require_kept_are_whole(const std::vector<FoundCheckpoint>& of_run,
                            const std::vector<FoundCheckpoint>& beyond) {
  std::set<std::filesystem::path> removed;
  for (const FoundCheckpoint& each : beyond) removed.insert(each.folder);
  for (const FoundCheckpoint& each : of_run) {
    if (removed.contains(each.folder)) continue;
    try {
      check_files(each.folder, each.files);
    } catch (const Error& error) {
      ErrorText text = error.text();
      text.cause = text.cause.empty() ? text.what : fmt::format("{}; {}", text.what, text.cause);
      text.what = fmt::format("nothing was removed, because {} would be kept",
                              printable(each.folder.filename().string()));
      text.hint = "move this checkpoint out of the folder, then prune again";
      throw IoError(error.code(), std::move(text));
    }
  }
}

}  // namespace

void prune_checkpoints(const std::filesystem::path& folder, const PruneOptions& options,
                       const std::function<void(const std::string& line)>& say) {
  std::optional<CheckpointFolder> locked;
  if (!options.dry_run) {
    locked.emplace(folder, Disk::system());
    for (const std::string& note : locked->notes()) say("note: " + note);
  }
  const FoundCheckpoints found = find_checkpoints(folder);
  if (found.of_run.empty()) return say("no checkpoint of a run, nothing to remove");
  const std::vector<FoundCheckpoint> beyond =
      checkpoints_beyond(options.keep, found.of_run.front().run, found);
  require_kept_are_whole(found.of_run, beyond);
  int64_t removed = 0, bytes = 0;
  std::vector<std::string> errors;
  for (const FoundCheckpoint& each : beyond) {
    const std::string name = printable(each.folder.filename().string());
    if (const std::vector<std::string> others = other_files(each.folder, each.files);
        !others.empty()) {
      say(fmt::format("kept {}, which has other files: {}", name, list_of(others)));
      continue;
    }
    const int64_t size = bytes_in(each.folder);
    if (locked) {
      if (std::optional<std::string> error = locked->remove(each.folder)) {
        errors.push_back(std::move(*error));
        continue;
      }
    }
    say(fmt::format("{} {} ({})", locked ? "removed" : "would remove", name, format_bytes(size)));
    ++removed;
    bytes += size;
  }
  say(fmt::format("{} of run {}: {} {}, {}; {} kept", counted_checkpoints(std::ssize(found.of_run)),
                  found.of_run.front().run, removed, locked ? "removed" : "to remove",
                  format_bytes(bytes), std::ssize(found.of_run) - removed));
  if (errors.empty()) return;
  throw IoError(ExitCode::kIoError, {.what = fmt::format("{} could not be removed",
                                                         counted_checkpoints(std::ssize(errors))),
                                     .where = folder.string(),
                                     .cause = errors.front(),
                                     .hint = "check permissions and the disk"});
}

}  // namespace fsdp
