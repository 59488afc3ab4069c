// Sums up the steps of a training.
#pragma once

#include <fsdp/checkpoints.h>
#include <fsdp/engine.h>
#include <fsdp/training_state.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/step_record.h"

namespace training {

// Sums and peaks over the steps of a training. A checkpoint has the sums, so they include the steps
// before a resume. The peaks, saves and sent_bytes are of the steps since then.
struct TrainSummary {
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  int64_t samples = 0;  // of all ranks
  int64_t tokens = 0;   // of all ranks; 0 if the samples are not texts
  double seconds = 0;
  double last_loss = 0;
  std::string first_nonfinite;  // StepRecord::first_nonfinite of the first skipped step
  double exposed_comm_ms = 0;   // of this rank; before a resume, of rank 0, like input_ms
  double input_ms = 0;
  int64_t planned_engine_bytes = 0;  // MemoryPlan::peak_bytes with the optimizer's state
  int64_t peak_engine_bytes = 0;     // of this rank over all steps, like the next two
  int64_t peak_device_bytes = 0;     // StepRecord::device_peak_bytes
  int64_t peak_host_bytes = 0;       // offloaded bytes
  int64_t sent_bytes = 0;            // by this rank in the last step
  int64_t saves = 0;                 // of checkpoints
  double save_stall_ms = 0;          // time that this rank waited for them
  // With StepRecord::predicted_ms: the times of the steps since the resume, and the prediction.
  std::vector<double> step_ms;
  std::optional<double> predicted_ms;
  void add(const StepRecord& record);
  // Adds a save that was completed after the last step. Does nothing without one.
  void add(const std::optional<fsdp::SaveStats>& save);
  // Adds the sums to the checkpoints. `steps` is the step of the checkpoint, so the caller sets it.
  void add_to(fsdp::TrainingState& state);
  double samples_per_second() const { return seconds > 0 ? samples / seconds : 0; }
  // Returns the median of step_ms. Requires: it is not empty.
  double median_step_ms() const;
  // Returns the fraction of the steps' time in which this rank waited for batches.
  double input_share() const { return seconds > 0 ? input_ms / 1e3 / seconds : 0; }
};

// Returns the lines that programs print at the end of a training: steps, samples, time and speed;
// the engine's bytes at the peak beside the plan; the time of a step beside the prediction; saves,
// and restarts by the launcher, if there were any. Collective.
std::string summary_text(const fsdp::Engine& engine, const TrainSummary& summary);

}  // namespace training
