// MemoryCopies: copies of the state in memory that outlives the ranks, from which a restarted job
// resumes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/background_save.h"
#include "checkpoint/staged_shard.h"
#include "checkpoint/training_state_parts.h"

namespace fsdp {

// Returns the folder in memory that the launcher keeps while it restarts the job
// (FSDP_MEMORY_DIR), or nothing if there is none.
std::optional<std::filesystem::path> launcher_memory();
// Returns the folders of the copies in `memory`. Each of them contains at most one checkpoint.
std::vector<std::filesystem::path> copy_folders(const std::filesystem::path& memory);

// Two checkpoints in the launcher's memory, which are replaced in turn. While one is replaced, the
// other one is whole. A rank's file of a checkpoint is the memory to which its state is copied, so
// a copy needs no further memory.
class MemoryCopies {
 public:
  static constexpr int kCopies = 2;

  // `on_published` is called on rank 0's thread after each copy. Collective.
  // Errors: InvalidArgument (78) if the launcher has no memory for the job, or on a GPU.
  MemoryCopies(TrainingState::Parts& state, std::function<void()> on_published);

  // Allocates the memory of both copies. Collective. Errors: as make().
  void reserve(const std::vector<StatePart>& parts);
  // Begins to replace the older copy.
  // Requires: collective; no copy is in progress. Errors: IoError kIoError if no memory is left,
  //   kCannotCreate; those of BackgroundSave::start.
  Outcome make(const SaveStateOptions& options);
  bool is_in_progress() const { return save_.is_in_progress(); }
  // As BackgroundSave::finish.
  Outcome finish();

 private:
  std::filesystem::path folder_of(int copy) const;
  void prepare(int copy) const;
  Outcome prepare_on_rank_zero(int copy) const;

  TrainingState::Parts& state_;
  std::filesystem::path memory_;
  std::array<std::unique_ptr<StagedShard>, kCopies> staged_;
  BackgroundSave save_;
  int next_ = 0;             // the copy that is replaced next
  bool has_newest_ = false;  // the other copy existed at the start of this job
};

}  // namespace fsdp
