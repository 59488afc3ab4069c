// Holds the training loop.
#pragma once

#include <fsdp/batch_transfer.h>
#include <fsdp/checkpoints.h>
#include <fsdp/engine.h>
#include <fsdp/loss_scaler.h>
#include <fsdp/optim.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/batch.h"
#include "bert_qa/run/settings.h"
#include "bert_qa/run/train_log.h"
#include "bert_qa/run/training_windows.h"
#include "models/bert/bert_model.h"

namespace bert_qa {

// Sums and peaks over the steps of a training. A checkpoint has the sums, so they include the steps
// before a resume. The peaks and sent_bytes are of the steps since then.
struct TrainSummary {
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  int64_t windows = 0;  // of all ranks
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
  void add(const StepRecord& record);
  double samples_per_second() const { return seconds > 0 ? windows / seconds : 0; }
  // Returns the fraction of the steps' time in which this rank waited for batches.
  double input_share() const { return seconds > 0 ? input_ms / 1e3 / seconds : 0; }
};

// The part of a step that one rank computes.
struct StepTensors {
  fsdp::GlobalBatch slices;
  std::vector<Batch> batches;  // one for each micro-batch
};

// The training loop. All ranks run the same steps with the same collectives, also ranks without
// windows. Losses and gradients are means over all windows of a step, with equal weights. A thread
// prepares batches ahead of time. On a GPU, a batch is on the device before its step begins.
class QaTrainer {
 public:
  using OnStep = std::function<void(const StepRecord&, const TrainSummary& so_far)>;

  // Requires: the engine averages gradients over ranks (the default). `windows` and `settings`
  //   outlive this object.
  // Errors: those of fsdp::Checkpoints.
  QaTrainer(fsdp::Unit<bert::QuestionAnswering> model, fsdp::Engine& engine,
            TrainingWindows& windows, const TrainSettings& settings,
            const fsdp::CheckpointOptions& checkpoints);
  // Loads the checkpoint that the options choose. Returns the number of steps that are done.
  int64_t resume();
  // Runs the remaining steps. Calls `on_step` after each step, on every rank. Returns false if a
  // signal ended the training early. Requires: resume() was called.
  bool train(const OnStep& on_step);
  // Saves if a rank got a signal. Returns true if the run must stop. Collective.
  bool poll() { return checkpoints_.poll(); }
  const TrainSummary& summary() const { return summary_; }

 private:
  double forward_backward(const Batch& batch, double weight);
  StepRecord train_step(int64_t step, fsdp::BatchTransfer<StepTensors>& inputs);

  fsdp::Unit<bert::QuestionAnswering> model_;
  fsdp::Engine& engine_;
  TrainingWindows& windows_;
  const TrainSettings& settings_;
  fsdp::AdamW optimizer_;
  fsdp::LrSchedule schedule_;               // its factor depends only on the step
  std::optional<fsdp::LossScaler> scaler_;  // with float16 parameters
  TrainSummary summary_;
  fsdp::TrainingState state_;
  fsdp::Checkpoints checkpoints_;
};

}  // namespace bert_qa
