// Saves a checkpoint every N steps, resumes from the newest one, and stops on a signal.
//
//   fsdp::TrainingState state(engine);
//   state.add("optimizer", optimizer);
//   fsdp::Checkpoints checkpoints(state, run.checkpoints);
//   for (int64_t step = checkpoints.resume(); step < steps;) {
//     …
//     if (checkpoints.after_step(++step)) return 0;
//   }
#pragma once

#include <fsdp/checkpoint_options.h>
#include <fsdp/training_state.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace fsdp {

// The figures of a save, of this rank.
struct SaveStats {
  int64_t step = 0;
  // The time for which the training waited: in after_step or poll, and with save_async also in the
  // optimizer's step that waited for the copy of the state. Without save_async, equal to seconds.
  double stall_ms = 0;
  double seconds = 0;  // until the checkpoint was complete (rank 0), or this rank's file
  int64_t bytes = 0;   // of the checkpoint's tensors, over all ranks
};

// The checkpoints of one run: the folders FOLDER/step-00001200. A checkpoint is written under a
// hidden name and renamed when it is complete. So the newest checkpoint is found by reading the
// manifests in these folders, and no separate file names it. With an empty
// CheckpointOptions::folder nothing is saved, and signals end the process as usual; before SIGINT
// does, a note says how many steps are lost.
//
// With CheckpointOptions::save_async, after_step returns while the state is copied to memory. The
// next optimizer step waits for the copy. A thread of each rank then writes the copy to disk. The
// next save waits until the last one is complete.
//
// Signals: SIGINT (Ctrl-C) and SIGTERM save after the current step, a note has the command that
// continues the run, and after_step returns true. SIGUSR1 saves, and the training continues. A
// second SIGINT or SIGTERM ends the process at once with 130 or 143, unless it may be a launcher's
// copy of the first one: it then counts only a second later. A signal to one rank counts for all
// ranks. If the program has its own handler for a signal, this handler is kept. The destructor
// restores the handlers.
class Checkpoints {
 public:
  // Locks the folder for this job, and removes folders of checkpoints that were not finished.
  // Requires: collective. `state` outlives this object, and contains all objects of the training.
  // Errors: InvalidArgument (64) for invalid options, and (78) if a rank does not see the folder of
  //   rank 0; IoError kCannotCreate if the folder cannot be created, or if another job uses it.
  Checkpoints(TrainingState& state, CheckpointOptions options);
  // Waits for a save that is in progress, and warns if it fails. After an exception, abandons it.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Loads the checkpoint that the options choose, and returns the checkpoint's number of steps.
  // Returns 0 if no checkpoint is loaded. A note names the checkpoint. With "auto", damaged
  // checkpoints and checkpoints with values that are not finite are skipped, and a warning names
  // each of them. If save_steps is set or copies are kept in memory, another note has the bytes of
  // a checkpoint on disk and of the copies. Collective.
  // Errors: IoError kCorruptData if the checkpoint that `resume` names is damaged, or if "auto"
  //   finds checkpoints but can load none of them; the errors of load. IoError kIoError if the disk
  //   has no room for the checkpoints that the run will keep.
  int64_t resume();

  // Call this function after each optimizer step with the number of steps done. Saves if the number
  // is a multiple of save_steps, or if a rank got a signal. Returns true if the training must stop.
  // Collective: one exchange per step.
  // Errors: those of fsdp::save, unless on_save_error is kContinue. With save_async, a failure is
  //   thrown by the next call on all ranks after the failure.
  bool after_step(int64_t step);
  // Call this function in evaluation loops. Does the same as after_step with the step of the last
  // after_step call, but saves only if a rank got a signal. Collective.
  bool poll();
  // Waits until a save that is in progress is complete. Call this function at the end of a program
  // that uses save_async; otherwise the destructor waits, but cannot throw. Collective.
  // Errors: the same as after_step.
  void finish();
  // Returns the figures of a save that was completed since the last call.
  std::optional<SaveStats> completed_save();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns true if `resume` continues a run of the folder: --resume is "auto" and the folder has
// checkpoints, or it names one of them. The program may then replace earlier results of this run.
// If the ranks are on several hosts, call this function on rank 0 only.
// Errors: IoError kIoError if the folder cannot be read.
bool continues_run(const CheckpointOptions& options);

}  // namespace fsdp
