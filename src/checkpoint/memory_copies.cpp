#include "checkpoint/memory_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/environment.h"
#include "checkpoint/shard_content.h"
#include "fsdp/error.h"
#include "io/file_failure.h"
#include "io/found_checkpoints.h"

namespace fsdp {
namespace {

constexpr std::string_view kPreparing = "preparing the copy in memory";
// The folder of a copy while it is made.
constexpr const char* kHidden = ".copy";

// Returns the memory of the launcher. Errors: those of MemoryCopies.
std::filesystem::path require_memory(const TrainingState::Parts& state) {
  if (!state.engine.context->streams.torch_device.is_cpu()) {
    throw InvalidArgument({.what = "--save-memory-steps works on CPUs only",
                           .cause = "the launcher's memory is not pinned",
                           .hint = "use --save-async true"},
                          ExitCode::kConfiguration);
  }
  if (const auto memory = launcher_memory()) return *memory;
  throw InvalidArgument({.what = "--save-memory-steps needs a launcher that keeps the copies",
                         .cause = "FSDP_MEMORY_DIR is not set",
                         .hint = "start the job on one host with fsdp-run --max-restarts N"},
                        ExitCode::kConfiguration);
}

}  // namespace

std::optional<std::filesystem::path> launcher_memory() {
  const std::string folder = read_launch_environment().memory_dir;
  if (folder.empty()) return std::nullopt;
  return folder;
}

std::vector<std::filesystem::path> copy_folders(const std::filesystem::path& memory) {
  std::vector<std::filesystem::path> folders;
  for (int copy = 0; copy < MemoryCopies::kCopies; ++copy) {
    folders.push_back(memory / fmt::format("{}", copy));
  }
  return folders;
}

MemoryCopies::MemoryCopies(TrainingState::Parts& state, std::function<void()> on_published)
    : state_(state), save_(state, Disk::system(), std::move(on_published)) {
  run_or_throw_on_all_ranks(state.mesh(), kPreparing, [&] { memory_ = require_memory(state); });
  int64_t newest = -1;
  for (int copy = 0; copy < kCopies; ++copy) {
    staged_[copy] = std::make_unique<StagedShard>(
        state.engine,
        folder_of(copy) / kHidden / shard_name(state.mesh().rank(), state.mesh().world_size()));
    if (state.mesh().rank() != 0) continue;
    for (const FoundCheckpoint& each : find_checkpoints(folder_of(copy)).of_run) {
      if (!each.finite || each.sequence <= newest) continue;
      newest = each.sequence;
      next_ = (copy + 1) % kCopies;
    }
  }
  next_ = static_cast<int>(state.mesh().max(next_, "next copy in memory"));
  has_newest_ = state.mesh().max(newest, "newest copy in memory") >= 0;
}

std::filesystem::path MemoryCopies::folder_of(int copy) const {
  return copy_folders(memory_)[static_cast<size_t>(copy)];
}

// Takes the manifest, the hashes and the name from an earlier copy. Called on rank 0 before any
// rank writes, so that no file of the earlier copy is taken for one of the new copy.
void MemoryCopies::prepare(int copy) const try {
  const std::filesystem::path folder = folder_of(copy), hidden = folder / kHidden;
  std::filesystem::create_directories(folder);
  for (const std::filesystem::path& each : folders_in(folder)) {
    if (each == hidden) continue;
    std::error_code error;
    std::filesystem::rename(each, hidden, error);
    if (error) std::filesystem::remove_all(each);
  }
  std::filesystem::create_directories(hidden);
  const int64_t world_size = state_.mesh().world_size();
  std::vector<std::string> kept;
  for (int64_t rank = 0; rank < world_size; ++rank) kept.push_back(shard_name(rank, world_size));
  for (const auto& entry : std::filesystem::directory_iterator(hidden)) {
    if (std::ranges::find(kept, entry.path().filename().string()) == kept.end()) {
      std::filesystem::remove_all(entry.path());
    }
  }
} catch (const std::filesystem::filesystem_error& error) {
  cannot_create(error.path1(), error.code().value(), "cannot keep a copy of the state in memory");
}

void MemoryCopies::reserve(const std::vector<StatePart>& parts) {
  for (int copy = 0; copy < kCopies; ++copy) {
    // The copy that a restarted job has loaded keeps its files until the other one is complete.
    if (has_newest_ && copy != next_) continue;
    throw_on_all_ranks(state_.mesh(), prepare_on_rank_zero(copy));
    run_or_throw_on_all_ranks(state_.mesh(), kPreparing,
                              [&] { staged_[copy]->reserve(ShardContent(parts)); });
  }
}

Outcome MemoryCopies::prepare_on_rank_zero(int copy) const {
  return run_on_all_ranks(state_.mesh(), kPreparing, [&] {
    if (state_.mesh().rank() == 0) prepare(copy);
  });
}

Outcome MemoryCopies::make(const SaveStateOptions& options) {
  const int copy = next_;
  const std::filesystem::path folder = folder_of(copy);
  Outcome outcome = prepare_on_rank_zero(copy);
  if (outcome.failed()) return outcome;
  save_.start(
      *staged_[copy],
      {.target = {.folder = folder_of_step(folder, options.step)}, .temporary = folder / kHidden},
      options);
  return outcome;
}

Outcome MemoryCopies::finish() {
  Outcome outcome = save_.finish(/*some_rank_has_news=*/false);
  // A copy with values that are not finite is replaced next, because no job resumes from it.
  if (!outcome.failed() && !outcome.flagged) next_ = (next_ + 1) % kCopies;
  return outcome;
}

}  // namespace fsdp
