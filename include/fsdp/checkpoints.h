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

namespace fsdp {

// The checkpoints of one run: the folders FOLDER/step-00001200. A checkpoint is written under a
// hidden name and renamed when it is whole, so the newest one is found by its manifest, and no
// other file points to it. With an empty CheckpointOptions::folder nothing is saved, and signals
// have their usual effect.
//
// Signals: SIGTERM saves after the current step, and after_step returns true. SIGUSR1 saves, and
// the training goes on. A second SIGTERM, at least one second after the first one, ends the process
// at once with 143. A signal to one rank counts for all. A signal for which the program has a
// handler of its own is left alone. The destructor restores the handlers.
class Checkpoints {
 public:
  // Locks the folder for this job, and removes folders of checkpoints that were not finished.
  // Requires: collective. `state` outlives this object, and has all objects of the training.
  // Errors: InvalidArgument (64) for invalid options; IoError kCannotCreate if the folder cannot be
  //   created, or if another job uses it.
  Checkpoints(TrainingState& state, CheckpointOptions options);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Loads the checkpoint that the options choose, and returns the number of steps that it has; 0 if
  // the run starts anew. A note names the checkpoint. With "auto", damaged checkpoints and those
  // with values that are not finite are passed over, with a warning each. Collective.
  // Errors: IoError kCorruptData if a named checkpoint is damaged, or if all of several are; the
  //   errors of load. IoError kIoError if the checkpoints of the run cannot fit on the disk.
  int64_t resume();

  // Call it after each optimizer step with the number of steps done. Saves if the number is a
  // multiple of save_steps, or if a rank got a signal. Returns true if the training must stop.
  // Collective: one exchange per step.
  // Errors: those of fsdp::save, unless on_save_error is kContinue.
  bool after_step(int64_t step);
  // Call it in evaluation loops. Saves and returns as after_step, with the step of the last call,
  // but only because of a signal. Collective.
  bool poll();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
