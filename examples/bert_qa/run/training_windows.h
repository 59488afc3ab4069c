// Assigns windows to ranks, step by step.
#pragma once

#include <fsdp/sampler.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bert_qa/run/settings.h"
#include "bert_qa/windows/qa_batch.h"

namespace bert_qa {

// A source of the windows of an epoch, by number. The windows are from files or from a generator.
struct WindowSource {
  int64_t count = 0;
  std::function<int64_t(int64_t epoch, int64_t window)> length;
  // Returns rows of `length` tokens.
  std::function<QaBatch(int64_t epoch, std::span<const int64_t> windows, int64_t length)>
      make_batch;
};

// The part of a step that one rank computes.
struct StepInput {
  fsdp::GlobalBatch slices;
  std::vector<QaBatch> rows;  // one for each micro-batch
  int64_t tokens = 0;         // of the windows of all ranks, without padding
};

// The windows of a run. Const calls are thread-safe.
class TrainingWindows {
 public:
  // Errors: InvalidArgument if the windows do not fill one batch.
  TrainingWindows(WindowSource source, const Settings& settings, int rank, int world_size);

  int64_t window_count() const { return source_.count; }  // windows per epoch
  int64_t total_steps() const { return total_steps_; }    // steps of the schedule
  int64_t steps_to_run() const { return steps_to_run_; }
  int64_t steps_per_epoch() const { return cursor_.sampler().batches_per_epoch(); }
  // Returns the passes over the data after `steps` steps: 1.5 in the middle of the second one.
  double epochs_after(int64_t steps) const;
  // Returns the position of a checkpoint. After it was loaded, call resume() with its step.
  fsdp::SampleCursor& cursor() { return cursor_; }
  // Continues after `step` steps of another run. If its batches had another size, total_steps()
  // changes, so that the run still makes the given number of epochs.
  void resume(int64_t step);
  // Returns this rank's slices of a step, in all micro-batches. Requires: the resumed step <= step
  // < total_steps().
  fsdp::GlobalBatch step(int64_t step) const;
  // Returns this rank's part of a step. Rows are padded to the longest window of all ranks in the
  // micro-batch. Padding contributes to the softmax of the loss, so its width must not depend on
  // the number of ranks.
  StepInput input(int64_t step) const;

 private:
  // Sets the numbers of steps. `longer` is the number of steps by which the batches of earlier runs
  // make the training longer.
  void set_steps(int64_t longer);

  WindowSource source_;
  TrainSettings settings_;
  fsdp::SampleCursor cursor_;
  fsdp::SampleCursor all_ranks_;  // samples the same micro-batches as a whole
  int64_t total_steps_ = 0, steps_to_run_ = 0;
};

}  // namespace bert_qa
