// BackgroundSave: writes a checkpoint on a thread of each rank while the training continues.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>

#include "checkpoint/publication.h"
#include "checkpoint/staged_shard.h"
#include "checkpoint/training_state_parts.h"
#include "io/disk.h"

namespace fsdp {

// Saves checkpoints, one at a time. Each rank copies its elements to memory (StagedShard), and its
// thread writes them to disk. The threads take part in no collective. Rank 0's thread looks in the
// folder for the hashes that each rank writes last, and then publishes the checkpoint. So a
// checkpoint is complete as soon as its files are, also while the ranks compute.
class BackgroundSave {
 public:
  // The references must outlive this object. `on_published` is called on rank 0's thread after each
  // checkpoint.
  BackgroundSave(TrainingState::Parts& state, Disk& disk, std::function<void()> on_published);
  // Waits for the save in progress, and warns if it fails. If an exception is leaving the scope,
  // abandons the save instead. exit() abandons it, too.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // The place of a checkpoint: its final folder, and the folder in which it is written.
  struct Place {
    SaveTarget target;
    std::filesystem::path temporary;
  };
  // Copies the state to `staged`, and starts a thread that writes the copy. Returns before main
  // state is copied. If `staged` is a file in `place.temporary`, only its hashes are written.
  // Requires: collective; no save is in progress. `staged` outlives the save, and is equal in kind
  //   on all ranks. Errors: those of parts_for_save and StagedShard::stage.
  void start(StagedShard& staged, const Place& place, const SaveStateOptions& options);

  bool is_in_progress() const { return run_ != nullptr; }
  // Returns true if the save in progress has failed on this rank, or, on rank 0, if it has ended.
  bool has_news() const;
  // Waits for the save in progress, and returns its outcome. `some_rank_has_news`: has_news() of a
  // rank was true, so a rank that still writes does this for a save that has failed elsewhere. Such
  // a rank stops writing. Outcome::flagged: values of the checkpoint are not finite.
  // Requires: collective; a save is in progress. Errors: CommError.
  Outcome finish(bool some_rank_has_news);
  // Returns the time from start() to the end of this rank's thread, of the last save that finish()
  // has ended.
  double seconds() const { return seconds_; }

 private:
  struct Run;
  void write(const std::stop_token& stop);
  void publish_when_written(const std::stop_token& stop);
  bool wait_for_shards(const std::stop_token& stop) const;
  void abandon() noexcept;
  void abandon_at_exit() noexcept;
  friend class RunningSaves;

  TrainingState::Parts& state_;
  Disk& disk_;
  const std::function<void()> on_published_;
  const int exceptions_at_start_;
  std::unique_ptr<Run> run_;  // the save in progress
  double seconds_ = 0;
};

}  // namespace fsdp
